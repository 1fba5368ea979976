
-- Manual pages, before those of the system, and the commands' options, which bash completes.
prepend_path("MANPATH", pathJoin(root, "%(manuals)s"))
append_path("MANPATH", "")
if complete then
    local options = {%(options)s}
    for i = 1, #options, 2 do
        complete("bash", options[i], "-o bashdefault -o default -W '" .. options[i + 1] .. "'")
    end
end


-- Manual pages of the commands; without MANPATH, man finds them beside bin/. bash completes the commands' options.
if (os.getenv("MANPATH") or "") ~= "" then
    prepend_path("MANPATH", pathJoin(root, "%(manuals)s"))
end
if complete then
    local options = {%(options)s}
    for i = 1, #options, 2 do
        complete("bash", options[i], "-o bashdefault -o default -W '" .. options[i + 1] .. "'")
    end
end

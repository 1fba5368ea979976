
-- Manual pages of the commands: man finds them beside bin/, unless MANPATH names all of its directories. (Without this
-- condition, Lmod would change the empty entry in a MANPATH.) bash completes the commands' options.
local manpath = os.getenv("MANPATH")
if manpath and not string.find(":" .. manpath .. ":", "::", 1, true) then
    prepend_path("MANPATH", pathJoin(root, "%(manuals)s"))
end
if complete then
    local options = {%(options)s}
    for i = 1, #options, 2 do
        complete("bash", options[i], "-o bashdefault -o default -W '" .. options[i + 1] .. "'")
    end
end


-- Sets a variable until the module is unloaded. (Lmod's pushenv takes ten times as long as setenv; popping nothing unsets.)
local function set(name, value)
    if mode() == "load" and not os.getenv(name) then
        setenv(name, value)
    else
        pushenv(name, value)
    end
end


-- Commands of packages that users install, after the module's own on PATH. Unloading removes what loading added.
local commands = os.getenv("__PYTORCH_USERS_COMMANDS")
if mode() ~= "unload" then
    commands = pathJoin(userbase, "bin")
end
if commands then
    setenv("__PYTORCH_USERS_COMMANDS", commands)
    prepend_path("PATH", commands)
end
prepend_path("PATH", pathJoin(root, "venv/bin"))
prepend_path("PATH", pathJoin(root, "bin"))

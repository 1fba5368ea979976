
-- Commands of packages that users install. Unloading removes what loading added.
local commands = os.getenv("__PYTORCH_USERS_COMMANDS")
if mode() ~= "unload" then
    commands = pathJoin(userbase, "%(users)s") .. "%(more)s"
end
if commands then
    setenv("__PYTORCH_USERS_COMMANDS", commands)
    prepend_path("PATH", commands)
end
for _, directory in ipairs({ %(directories)s }) do
    prepend_path("PATH", pathJoin(root, directory))
end

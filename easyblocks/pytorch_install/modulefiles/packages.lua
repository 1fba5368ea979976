
-- Packages of `pip install --user` go into a directory of this user and this installation, not into ~/.local. Earlier
-- modules had one directory for all installations of a version: if it exists, they share it until the user moves it.
local shared = pathJoin(os.getenv("HOME") or "/", "%(directory)s")
local userbase = shared .. "-%(identity)s"
if isDir(shared) and not isDir(userbase) then
    userbase = shared
end
if mode() == "unload" then -- what loading found: the user may have moved it since
    userbase = (os.getenv("__PYTORCH_PACKAGES") or ""):match("^(.-)/torch_extensions") or userbase
end
pushenv("PYTHONUSERBASE", userbase)
-- Extensions that torch compiles for this user fit only this torch.
local extensions, recorded = pathJoin(userbase, "torch_extensions"), ""
local users = os.getenv("TORCH_EXTENSIONS_DIR") or ""
pushenv("TORCH_EXTENSIONS_DIR", users ~= "" and users or extensions)
-- Of pip, after the user's own paths. (append_path would replace the two slashes of a URL by one.)
local paths = { %(paths)s }
for index, name in ipairs({ %(variables)s }) do
    local ours, files = pathJoin(root, paths[index]), {}
    for file in (os.getenv(name) or ""):gmatch("%%S+") do
        if file ~= ours then
            table.insert(files, file)
        end
    end
    table.insert(files, ours)
    pushenv(name, table.concat(files, " "))
    recorded = recorded .. " " .. ours
end
setenv("__PYTORCH_PACKAGES", extensions .. recorded) -- for a Tcl module that replaces this one


-- Packages of `pip install --user` go into a directory of this user and this installation, not into ~/.local. Earlier
-- modules had one directory for all installations of a version: if it exists, they share it until the user moves it.
local shared = pathJoin(os.getenv("HOME") or "/", "%(directory)s")
local userbase = shared .. "-%(identity)s"
if isDir(shared) and not isDir(userbase) then
    userbase = shared
end
pushenv("PYTHONUSERBASE", userbase)
-- Extensions that torch compiles for this user fit only this torch.
local extensions, constraints = pathJoin(userbase, "torch_extensions"), pathJoin(root, "constraints.txt")
local users = os.getenv("TORCH_EXTENSIONS_DIR") or ""
pushenv("TORCH_EXTENSIONS_DIR", users ~= "" and users or extensions)
-- Constraints of pip and uv, after the user's own files. (append_path would replace the two slashes of a URL by one.)
for _, name in ipairs({ %(constrained)s }) do
    local files = {}
    for file in (os.getenv(name) or ""):gmatch("%%S+") do
        if file ~= constraints then
            table.insert(files, file)
        end
    end
    table.insert(files, constraints)
    pushenv(name, table.concat(files, " "))
end
setenv("__PYTORCH_PACKAGES", extensions .. " " .. constraints) -- for a Tcl module that replaces this one


-- Packages of `pip install --user` go into a directory of this user and this installation, not into ~/.local.
local home = os.getenv("HOME") or ""
if mode() == "load" and home:sub(1, 1) ~= "/" then
    LmodError("HOME is not an absolute path: '" .. home .. "'. Export HOME, then load the module again")
end
local userbase = pathJoin(home, "%(directory)s-%(identity)s")
set("PYTHONUSERBASE", userbase)
-- Extensions that torch compiles for this user fit only this torch.
local extensions = os.getenv("TORCH_EXTENSIONS_DIR") or ""
set("TORCH_EXTENSIONS_DIR", extensions ~= "" and extensions or pathJoin(userbase, "torch_extensions"))
-- Lists of pip: the user's own paths, then the module's. (append_path would replace the two slashes of a URL by one.)
local paths = { %(paths)s }
for index, name in ipairs({ %(variables)s }) do
    local users = os.getenv(name) or ""
    set(name, (users ~= "" and users .. " " or "") .. pathJoin(root, paths[index]))
end

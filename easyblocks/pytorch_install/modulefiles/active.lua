
-- Loading puts the module's Python first on PATH, and `deactivate` would restore a PATH without the module.
local active = os.getenv("VIRTUAL_ENV") or os.getenv("CONDA_PREFIX") or ""
if mode() == "load" and active ~= "" and active:sub(1, #root) ~= root and not active:match("^/user%%-software/") then
    LmodMessage("PyTorch: " .. active .. " is active, and python is now the module's. Deactivate it, then load the module "
                .. "again; activate environments after loading")
end

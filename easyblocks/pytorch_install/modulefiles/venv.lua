
-- Loading fails unless the Python and the modules of the build (provenance/build.json) are available. Lmod names a module
-- that is not.
local required, brought = { %(required)s }, { %(brought)s }

local function refuse(built_with, problem)
    LmodError("%(module)s was built with " .. built_with .. ", " .. problem)
end

if mode() == "load" then
    local others, instead_of = {}, {}
    for _, wanted in ipairs(required) do
        for _, loaded in ipairs(loaded_modules()) do
            if loaded.sn == wanted:match("^(.+)/") and not isloaded(wanted) then
                table.insert(others, loaded.fullName)
                table.insert(instead_of, wanted)
            end
        end
    end
    if #others > 0 then
        local loaded = table.concat(others, " ")
        refuse(table.concat(instead_of, " "), "but " .. loaded .. " is loaded. Run `module unload " .. loaded
               .. "`, then load this module again")
    end
end
for _, modules in ipairs({ required, brought }) do
    for _, wanted in ipairs(modules) do
        depends_on(wanted)
    end
end
-- The standard library is the host's, or a copy that stays. `eb --module-only` loads a module without files.
local venv = pathJoin(root, "venv")
if mode() == "load" and isDir(venv) and not isFile(pathJoin(venv, "lib/python%(minor)s/os.py")) then
    refuse("Python %(version)s at %(python)s", "which is no longer available. Load this module on a host that has that "
           .. "Python, or build again with `eb --force %(easyconfig)s`")
end

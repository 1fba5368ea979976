
-- Loading fails unless the Python and the modules of the build (provenance/build.json) are available.
local required, brought = { %(required)s }, { %(brought)s }
local python, version = "%(python)s", "%(version)s"

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
        if mode() == "load" and not isloaded(wanted) and not isAvail(wanted) then
            refuse(wanted, "which is no longer available. Find it with `module spider " .. wanted
                   .. "`, or build again with an available module, `eb --force %(easyconfig)s`")
        end
        depends_on(wanted)
    end
end
if mode() == "load" then
    local built_with = "Python " .. version .. " at " .. python
    local remedy = ". Load this module on a host that has that Python, or build again with "
                   .. "`eb --force %(easyconfig)s`"
    if not isFile(python) then
        refuse(built_with, "which is no longer available" .. remedy)
    end
    local minor, found = version:match("^%%d+%%.%%d+"), nil
    local versioned = "python" .. minor
    if python:sub(-#versioned) ~= versioned then -- the name python3.11 has the version
        -- empty if Python needs the libraries of a module that is being loaded
        found = capture("'" .. python:gsub("'", "'\\''") .. "' --version 2>/dev/null"):match("Python (%%d+%%.%%d+%%S*)")
    end
    if found and found:match("^%%d+%%.%%d+") ~= minor then
        refuse(built_with, "which is now Python " .. found .. remedy)
    end
end

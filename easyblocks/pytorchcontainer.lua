
-- The installed image, else the site's own copy.
local image = pathJoin(root, "%(image)s")
local places = image
if not isFile(image) and "%(central_image)s" ~= "" then
    image = "%(central_image)s"
    places = places .. " and " .. image
end
if mode() == "load" and not isFile(image) then
    LmodError("There is no image at " .. places .. ": install it again with `eb --rebuild %(easyconfig)s`")
end
pushenv("SIF", image)
pushenv("SIFPYTORCH", image)

-- A runtime that finds both names of a variable reads APPTAINER's alone, so both get ours and what the
-- user has under the other name. What is really added is noted: unloading takes away just that.
local function add_to_both(singularity, apptainer, separator, ours)
    local user = { [singularity] = os.getenv(singularity) or "", [apptainer] = os.getenv(apptainer) or "" }
    for from, to in pairs({ [singularity] = apptainer, [apptainer] = singularity }) do
        local note = "__PYTORCH_ADDED_TO_" .. to
        local added = os.getenv(note) or ""
        if mode() ~= "unload" then
            added = ""
            local wanted = user[from] .. separator .. table.concat(ours, separator)
            for entry in wanted:gmatch("[^" .. separator .. "]+") do
                local there = separator .. user[to] .. separator .. added .. separator
                if not there:find(separator .. entry .. separator, 1, true) then
                    added = added .. (added ~= "" and separator or "") .. entry
                end
            end
        end
        if added ~= "" then
            setenv(note, added)
        end
        for entry in added:gmatch("[^" .. separator .. "]+") do
            append_path(to, entry, separator)
        end
    end
end
-- All that EasyBuild installed is visible under its own path, data sets included.
local binds = { root .. "/runscripts:/runscripts", root .. "/payload:/payload", "%(software)s" }
if isDir("%(data)s") then
    table.insert(binds, "%(data)s")
end
add_to_both("SINGULARITY_BIND", "APPTAINER_BIND", ",", binds)
add_to_both("SINGULARITYENV_PREPEND_PATH", "APPTAINERENV_PREPEND_PATH", ":", { "/runscripts" })

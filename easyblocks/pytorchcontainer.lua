
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

-- A runtime that finds both names of a variable reads APPTAINER's alone: what the user has under one
-- name is added under the other too, and noted, so that unloading takes away just that.
local function add_to_both(singularity, apptainer, separator, ours)
    local user = { [singularity] = os.getenv(singularity) or "", [apptainer] = os.getenv(apptainer) or "" }
    for from, to in pairs({ [singularity] = apptainer, [apptainer] = singularity }) do
        local note = "__PYTORCH_COPIED_TO_" .. to
        local copied = os.getenv(note) or ""
        if mode() ~= "unload" then
            copied = user[from] ~= user[to] and user[from] or ""
        end
        if copied ~= "" then
            setenv(note, copied)
            for entry in copied:gmatch("[^" .. separator .. "]+") do
                append_path(to, entry, separator)
            end
        end
        for _, entry in ipairs(ours) do
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

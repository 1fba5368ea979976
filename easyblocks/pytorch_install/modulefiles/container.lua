
-- The installed image. If it does not exist, a copy in a directory of the site.
local places = { pathJoin(root, "%(image)s") }
for _, directory in ipairs({ %(central_images)s }) do
    table.insert(places, pathJoin(directory, "%(image)s"))
end
local image
for _, place in ipairs(places) do
    image = image or (isFile(place) and place)
end
if mode() == "load" and not image then
    LmodError("image not found: " .. table.concat(places, " or ")
              .. ". Install it again with `eb --rebuild %(easyconfig)s`")
end
pushenv("SIF", image or places[1])
pushenv("SIFPYTORCH", image or places[1])

-- Packages that users install: the packed file, unless it was unpacked, or the directory. Unloading uses what loading
-- found. (Without `ro`, Apptainer warns at every start that a packed file is not writable. The root of the file is `.`,
-- not `/`: options are entries of the list, and a user's own `image-src=/` would be mistaken for ours.)
local environment = "/user-software/venv/pytorch"
local user_software = os.getenv("__PYTORCH_USER_SOFTWARE")
if mode() ~= "unload" then
    local directory = "%(user_software)s"
    if isFile(directory .. ".squashfs") and not isFile(pathJoin(directory, ".unpacked")) then
        user_software = directory .. ".squashfs:/user-software:ro,image-src=."
    else
        user_software = isDir(directory) and directory .. ":/user-software"
    end
end
if user_software then
    setenv("__PYTORCH_USER_SOFTWARE", user_software)
    pushenv("SINGULARITYENV_VIRTUAL_ENV", environment)
    pushenv("APPTAINERENV_VIRTUAL_ENV", environment)
end
pushenv("WITH_VENV", user_software and "source " .. environment .. "/bin/activate" or "true")

-- If both names of a variable are set, a runtime reads only APPTAINER's. So each name receives our entries and those
-- that the user has in the other. What is added is recorded, and unloading removes only that.
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
            append_path(to, added, separator)
        end
    end
end
-- Binds: runscripts and payload, all that EasyBuild installed (data sets too) under its own path, what the recipe
-- names, and the host's files by which programs verify servers.
local binds = { root .. "/runscripts:/runscripts", root .. "/payload:/payload", "%(software)s" }
for _, bind in ipairs({ "%(data)s", %(binds)s }) do
    if lfs.attributes(bind:match("[^:]+")) then
        table.insert(binds, bind)
    end
end
for _, name in ipairs({ %(connection_files)s }) do
    local file = os.getenv(name) or ""
    if file:match("^/[^,:]*$") and lfs.attributes(file, "mode") == "file" then
        table.insert(binds, file)
    end
end
if user_software then
    table.insert(binds, user_software)
end
add_to_both("SINGULARITY_BIND", "APPTAINER_BIND", ",", binds)
add_to_both("SINGULARITYENV_PREPEND_PATH", "APPTAINERENV_PREPEND_PATH", ":",
            { "/runscripts", environment .. "/bin", pathJoin(userbase, "bin") })

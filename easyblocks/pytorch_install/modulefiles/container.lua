
-- Whether a file can be read. (isFile of Lmod 8.6 does not follow a link, and says nothing of permissions.)
local function can_read(path)
    local file = io.open(path)
    if not file then
        return false
    end
    local _, problem = file:read(1) -- a directory can be opened
    file:close()
    return not problem
end

-- The installed image. If it cannot be read, a copy in a directory of the site.
local places, image = {}, nil
for _, directory in ipairs({ root, %(central_images)s }) do
    local place = pathJoin(directory, "%(image)s")
    table.insert(places, place)
    image = image or (can_read(place) and place)
end
if mode() == "load" and not image then
    LmodError("image not found, or not readable: " .. table.concat(places, " or ")
              .. ". Install it again with `eb --rebuild %(easyconfig)s`")
end
set("SIF", image or places[1])
set("SIFPYTORCH", image or places[1])

-- Packages that users install: the packed file, unless it was unpacked, or the directory. Unloading uses what loading
-- found. (Without `ro`, Apptainer warns at every start that a packed file is not writable. The root of the file is `.`,
-- not `/`: options are entries of the list, and a user's own `image-src=/` would be mistaken for ours.)
local environment = "/user-software/venv/pytorch"
local user_software = os.getenv("__PYTORCH_USER_SOFTWARE")
if mode() ~= "unload" then
    local directory = "%(user_software)s"
    local packed = directory .. ".squashfs"
    if (isFile(packed) or can_read(packed)) and not isFile(pathJoin(directory, ".unpacked")) then
        user_software = packed .. ":/user-software:ro,image-src=."
    else
        user_software = isDir(directory .. "/.") and directory .. ":/user-software"
    end
end
if user_software then
    setenv("__PYTORCH_USER_SOFTWARE", user_software)
    set("SINGULARITYENV_VIRTUAL_ENV", environment)
    set("APPTAINERENV_VIRTUAL_ENV", environment)
end
set("WITH_VENV", user_software and "source " .. environment .. "/bin/activate" or "true")

-- Binds: runscripts and payload, all that EasyBuild installed (data sets too) under its own path, and what exists of the
-- recipe's, of the profile's, and of the files that the user's variables name.
local binds = { root .. "/runscripts:/runscripts", root .. "/payload:/payload", "%(software)s" }
for _, bind in ipairs({ "%(data)s", %(binds)s }) do
    if lfs.attributes(bind:match("[^:]+")) then
        table.insert(binds, bind)
    end
end
for directory in (os.getenv("PYTORCH_BIND") or ""):gmatch("/[^,]+") do
    table.insert(binds, directory) -- not examined here: its file system may not answer
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

-- The user's binds are in *_BIND (if both are set, a runtime reads Apptainer's). A runtime mounts them first, and would
-- warn of a second bind to the same place.
local function destination(bind)
    return bind:match("^[^:]+:([^:]+)") or bind
end
local users, is_theirs, ours = os.getenv("APPTAINER_BIND") or "", {}, {}
if users == "" then
    users = os.getenv("SINGULARITY_BIND") or ""
end
for bind in users:gmatch("[^,]+") do
    is_theirs[destination(bind)] = true
end
for _, bind in ipairs(binds) do
    if not is_theirs[destination(bind)] then
        table.insert(ours, bind)
    end
end

-- If both names of a list are set, a runtime reads only APPTAINER's. So each receives our entries and those that the user
-- has in the other. What is added is recorded, and unloading removes only that.
local function add_to_both(name, separator, entries)
    local singularity, apptainer = "SINGULARITY" .. name, "APPTAINER" .. name
    local users = (os.getenv(singularity) or "") .. separator .. (os.getenv(apptainer) or "") .. separator
    for _, list in ipairs({ singularity, apptainer }) do
        local note, added = "__PYTORCH_ADDED_TO_" .. list, ""
        local present = separator .. (os.getenv(list) or "") .. separator
        for entry in (users .. table.concat(entries, separator)):gmatch("[^" .. separator .. "]+") do
            if not present:find(separator .. entry .. separator, 1, true) then
                present = present .. entry .. separator
                added = added .. (added ~= "" and separator or "") .. entry
            end
        end
        if mode() == "unload" then
            added = os.getenv(note) or ""
        end
        if added ~= "" then
            setenv(note, added)
            append_path(list, added, separator)
        end
    end
end
add_to_both("_BINDPATH", ",", ours)
-- The last but one is that of an environment that a user packs and mounts there.
add_to_both("ENV_PREPEND_PATH", ":",
            { "/runscripts", environment .. "/bin", "/user-software/bin", pathJoin(userbase, "bin") })

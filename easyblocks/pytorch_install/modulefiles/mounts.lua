
-- What the image sees of the host: /tmp, the home directory, the software and data that EasyBuild installed, and what
-- the recipe and the profile name, under their own paths; runscripts and payload also where other images have them. The
-- runscripts recognize the image by /runscripts.
local mounts = { root .. "/runscripts:/runscripts", root .. "/payload:/payload" }
for _, mount in ipairs({ "/tmp", os.getenv("HOME") or "", "%(software)s", "%(data)s", %(binds)s }) do
    if lfs.attributes(mount:match("[^:]+") or "") then
        table.insert(mounts, mount:find(":", 1, true) and mount or mount .. ":" .. mount)
    end
end
for directory in (os.getenv("PYTORCH_BIND") or ""):gmatch("/[^,]+") do
    table.insert(mounts, directory .. ":" .. directory)
end
set("PYTORCH_MOUNTS", table.concat(mounts, ","))

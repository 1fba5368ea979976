
-- Commands of packages that users install, after those of the module.
prepend_path("PATH", pathJoin(userbase, "%(users)s") .. "%(more)s")
for _, directory in ipairs({ %(directories)s }) do
    prepend_path("PATH", pathJoin(root, directory))
end

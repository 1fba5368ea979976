
-- The cluster profile. Unloading removes it if loading brought it. (With depends_on, Lmod evaluates all loaded modules twice.)
if not isloaded("cluster/%(cluster)s") or os.getenv("__PYTORCH_LOADED_PROFILE") then
    setenv("__PYTORCH_LOADED_PROFILE", "1")
    load("cluster/%(cluster)s")
end

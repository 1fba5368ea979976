
-- The cluster profile. (Not depends_on: for its check, Lmod starts Tcl twice, a quarter of the time of a load.)
append_path("MODULEPATH", pathJoin(root, "modulefiles"))
if mode() == "unload" or not isloaded("cluster/%(cluster)s") then
    load("cluster/%(cluster)s")
end

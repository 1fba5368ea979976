
# The cluster profile. `module reload` of Environment Modules unloads all modules and loads them in their order: the
# profile precedes this module then, and would not be found. (Lmod has no such command.)
if {[catch {module-info command} command] || $command ne "reload"} {
    append-path MODULEPATH $root/modulefiles
}

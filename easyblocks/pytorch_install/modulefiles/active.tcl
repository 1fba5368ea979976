
# Loading puts the module's Python first on PATH, and `deactivate` would restore a PATH without the module.
foreach name {CONDA_PREFIX VIRTUAL_ENV} {
    if {[info exists env($name)] && $env($name) ne {}} {
        set active $env($name)
    }
}
if {[module-info mode load] && [info exists active] && [string first $root $active] != 0
    && ![string match /user-software/* $active]} {
    puts stderr "PyTorch: $active is active, and python is now the module's. Deactivate it, then load the module again;\
        activate environments after loading"
}


# Loading puts the module's Python first on PATH, and `deactivate` would restore a PATH without the module.
set active [value_of VIRTUAL_ENV]
if {$active eq {}} {
    set active [value_of CONDA_PREFIX]
}
if {$is_load && $active ne {} && [string first $root $active] != 0
    && ![string match /user-software/* $active]} {
    puts stderr "PyTorch: $active is active, and python is now the module's. Deactivate it, then load the module again;\
        activate environments after loading"
}

# What the user exported wins: the procedures of the cluster profiles, which source this file from beside
# themselves, and of pytorch-easybuild. (Its dot and the lack of a first line `#%Module` keep it out of `module avail`.)

# A line of a profile.
proc policy {name args} {
    if {[llength $args] != 1} {
        # the third word keeps Environment Modules from adding a stack trace
        error "policy $name $args: a line has one name and one value. Put a value with blanks in double quotes, and a\
            comment on a line of its own" {} MODULES_ERR_GLOBAL
    }
    report_unsupported_runtime $name [set_unless_set $name [lindex $args 0] __CLUSTER_SET_]
}

# On loading, reports a CUDA or ROCm that the site's driver does not support, by PYTORCH_DRIVER_CUDA or
# PYTORCH_DRIVER_ROCM, such as 6.1-7.0. The PyTorch module sets __PYTORCH_RUNTIME before it loads the profile.
proc report_unsupported_runtime {name supported} {
    global env
    lassign [expr {[info exists env(__PYTORCH_RUNTIME)] ? $env(__PYTORCH_RUNTIME) : {}}] kind version
    if {![module-info mode load] || $name ne "PYTORCH_DRIVER_[string toupper $kind]"
        || ![regexp {^(\d[\d.]*)-(\d[\d.]*)$} $supported supported oldest newest]} {
        return
    }
    if {[compare_versions $version $oldest] < 0 || [compare_versions $version $newest] > 0} {
        puts stderr "PyTorch: this module is built for $kind $version, and the site's driver supports $oldest to $newest\
            ($name, [module-info name]). Load a module for one of these: module avail PyTorch"
    }
}

# Returns -1, 0 or 1 for an older, an equal or a newer version. A version without a number is equal in that number.
proc compare_versions {version other} {
    foreach number [split $version .] limit [split $other .] {
        if {$number eq {} || $limit eq {}} {
            return 0
        }
        if {$number != $limit} {
            return [expr {$number < $limit ? -1 : 1}]
        }
    }
    return 0
}

# Sets a variable unless the user has, and notes it, so that unloading takes away just that. (Not by
# pushenv: Lmod 8.6's Tcl interpreter puts the new value in the place of the one to bring back.)
# Returns the value that holds.
proc set_unless_set {name value notes} {
    global env
    set note $notes$name
    switch [module-info mode] {
        load { set ours [expr {![is_set $name]}] }
        remove - unload { set ours [info exists env($note)] }
        default { set ours 1 }
    }
    if {!$ours} {
        return [expr {[info exists env($name)] ? $env($name) : $value}]
    }
    # unloading takes any value, but Environment Modules show it to what is loaded next (switch)
    setenv $name [expr {[module-info mode] in {remove unload} ? {} : $value}]
    setenv $note 1
    return $value
}

# Whether a variable is set. Environment Modules keep in env what was unset on the way here (switch): getenv knows.
proc is_set {name} {
    global env
    if {[info commands getenv] ne {}} {
        return [expr {[getenv $name \0] ne "\0"}]
    }
    return [info exists env($name)]
}

# What the user exported wins: the procedures of the cluster profiles, which source this file from beside
# themselves, and of pytorch-easybuild. (Its dot and the lack of a first line `#%Module` keep it out of `module avail`.)

# A line of a profile.
proc policy {name args} {
    if {[llength $args] != 1} {
        # the third word keeps Environment Modules from adding a stack trace
        error "policy $name $args: a line has one name and one value. Put a value with blanks in double quotes, and a\
            comment on a line of its own" {} MODULES_ERR_GLOBAL
    }
    set_unless_set $name [lindex $args 0] __CLUSTER_SET_
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


# A value of the user's comes back on unload: the pushenv of both module systems may lose it.
if {[info exists ModuleTool] && $ModuleTool eq "Lmod"} {
    # Lmod looks for the value to keep after Tcl is done, and finds the new one (8.6, tcl2lua.tcl): it finds the user's.
    rename pushenv lmod_pushenv
    proc pushenv {name value} {
        global env
        set users [array get env $name]
        lmod_pushenv $name $value
        set env($name) $value ;# another interpreter did, and unset passes over what is unknown in this one
        unset env($name)
        array set env $users
    }
} else {
    # Environment Modules part it at its colons (5.2): it is noted in a variable of its own.
    proc pushenv {name value} {
        global env
        set note __PYTORCH_USERS_$name
        if {[module-info mode unload]} {
            if {[info exists env($note)]} {
                unsetenv $name $env($note)
                setenv $note {}
            } else {
                setenv $name {} ;# no value, which a module that is switched to would take for the user's
            }
            return
        }
        # not from env, which still has what was unset on the way here
        if {[module-info mode load] && [getenv $name \0] ne "\0"} {
            setenv $note [getenv $name]
        }
        setenv $name $value
    }
}



# A pushenv that restores the user's value on unload: those of both module systems may lose it.
if {[info exists ModuleTool] && $ModuleTool eq "Lmod"} {
    # Lmod reads the value to save after Tcl has ended, and would find the new one (8.6, tcl2lua.tcl): keep the user's.
    rename pushenv lmod_pushenv
    proc pushenv {name value} {
        global env
        set users [array get env $name]
        lmod_pushenv $name $value
        set env($name) $value ;# another interpreter set it, and unset ignores what this one does not know
        unset env($name)
        array set env $users
    }
} else {
    # Environment Modules split the value at its colons (5.2): save it in a variable of its own.
    proc pushenv {name value} {
        global env
        set note __PYTORCH_USERS_$name
        if {[module-info mode unload]} {
            if {[info exists env($note)]} {
                unsetenv $name $env($note)
                setenv $note {}
            } else {
                setenv $name {} ;# not our value: a module that replaces this one would save it as the user's
            }
            return
        }
        # not from env: in a switch it still has variables that were unset
        if {[module-info mode load] && [getenv $name \0] ne "\0"} {
            setenv $note [getenv $name]
        }
        setenv $name $value
    }
}


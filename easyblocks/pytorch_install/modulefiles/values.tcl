
# Lmod says `remove`.
set is_load [module-info mode load]
set is_unload [expr {[module-info mode] in {remove unload}}]

# The value of a variable; empty if it is not set. (In a switch, Environment Modules keep unset variables in env.)
proc value_of {name} {
    if {![info exists ::env($name)] || (![catch {getenv $name \0} value] && $value eq "\0")} {
        return {}
    }
    return $::env($name)
}

if {[info exists ModuleTool] && $ModuleTool eq "Lmod"} {
    # That of Lmod 8.6 would save this value as the user's.
    proc pushenv {name value} {
        setenv $name $value
    }
} else {
    # Environment Modules have no pushenv (4.6), or split the value at its colons (5.2): save it in a variable of its own.
    proc pushenv {name value} {
        global is_load is_unload
        set note __PYTORCH_USERS_$name
        if {$is_load && [info exists ::env($name)] && [getenv $name \0] ne "\0"} {
            setenv $note $::env($name)
        }
        if {!$is_unload} {
            setenv $name $value
        } elseif {[info exists ::env($note)]} {
            unsetenv $name $::env($note)
            setenv $note {}
        } else {
            setenv $name {} ;# not our value: a module that replaces this one would save it as the user's
        }
    }
}

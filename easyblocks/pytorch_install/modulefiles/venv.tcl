
# Loading fails unless the Python and the modules of the build (provenance/build.json) are available. The module system
# names a module that is not.
set required [list %(required)s]
set brought [list %(brought)s]

proc refuse {built_with problem} {
    # the third argument prevents a stack trace of Environment Modules
    error "%(module)s was built with $built_with, $problem" {} MODULES_ERR_GLOBAL
}

if {[module-info mode load]} {
    set loaded_modules [expr {[info exists env(LOADEDMODULES)] ? [split $env(LOADEDMODULES) :] : {}}]
    set others {}
    set instead_of {}
    foreach wanted $required {
        foreach loaded $loaded_modules {
            if {[file dirname $loaded] eq [file dirname $wanted] && $loaded ne $wanted && $wanted ni $loaded_modules
                && [string first / $wanted] > 0} {
                lappend others $loaded
                lappend instead_of $wanted
            }
        }
    }
    if {$others ne {}} {
        refuse [join $instead_of] "but [join $others] is loaded. Run `module unload [join $others]`,\
            then load this module again"
    }
}
foreach wanted [concat $required $brought] {
    if {[info exists ModuleTool] && $ModuleTool eq "Lmod"} {
        depends-on $wanted
    } else {
        module load $wanted
    }
}
# The standard library is the host's, or a copy that stays. `eb --module-only` loads a module without files.
set venv [file join $root venv]
if {[module-info mode load] && [file isdirectory $venv] && ![file isfile $venv/lib/python%(minor)s/os.py]} {
    refuse "Python %(version)s at %(python)s" "which is no longer available. Load this module on a host that has that\
        Python, or build again with `eb --force %(easyconfig)s`"
}

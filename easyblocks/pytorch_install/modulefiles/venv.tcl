
# The Python and the modules of the build (provenance/build.json) are those that are used, or loading fails.
set required [list %(required)s]
set brought [list %(brought)s]
set python "%(python)s"
set version "%(version)s"
set remedy "build again with `eb --force %(easyconfig)s`"

proc refuse {built_with problem} {
    # the third word keeps Environment Modules from adding a stack trace
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
        refuse [join $instead_of] "not with [join $others] as loaded now: `module unload [join $others]`,\
            then load this module again"
    }
}
# Lmod carries out what this file says when all of it is read: which modules one brings is not known before
set lmod [expr {[info exists ModuleTool] && $ModuleTool eq "Lmod"}]
set certain 1
foreach wanted [concat $required $brought] {
    if {[module-info mode load] && ![is-loaded $wanted]} {
        if {$certain && ![is-avail $wanted]} {
            refuse $wanted "which is not there any more: find it with `module avail $wanted`, or $remedy"
        }
        set certain [expr {!$lmod}]
    }
    if {$lmod} {
        depends-on $wanted
    } else {
        module load $wanted
    }
}
if {[module-info mode load]} {
    set built_with "Python $version at $python"
    set remedy "load this module on a host that has that Python, or $remedy"
    if {![file isfile $python]} {
        refuse $built_with "which is not there any more: $remedy"
    }
    # fails where it needs the libraries of a module that is loaded only now
    if {![catch {exec $python --version} found] && [regexp {^Python (\d+\.\d+)\S*} $found found minor]
        && [string first $minor. $version.] != 0} {
        refuse $built_with "which is $found now: $remedy"
    }
}

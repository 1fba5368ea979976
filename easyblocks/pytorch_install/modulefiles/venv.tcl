
# Loading fails unless the Python and the modules of the build (provenance/build.json) are available.
set required [list %(required)s]
set brought [list %(brought)s]
set python "%(python)s"
set version "%(version)s"
set remedy "build again with `eb --force %(easyconfig)s`"

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
# Lmod executes this file's commands after reading all of it: until then, what a module provides is unknown
set lmod [expr {[info exists ModuleTool] && $ModuleTool eq "Lmod"}]
set certain 1
foreach wanted [concat $required $brought] {
    if {[module-info mode load] && ![is-loaded $wanted]} {
        if {$certain && ![is-avail $wanted]} {
            refuse $wanted "which is no longer available. Find it with `module avail $wanted`, or $remedy"
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
    set remedy "Load this module on a host that has that Python, or $remedy"
    if {![file isfile $python]} {
        refuse $built_with "which is no longer available. $remedy"
    }
    regexp {^\d+\.\d+} $version minor
    # the name python3.11 has the version; otherwise Python prints it, unless it needs the libraries of a module that is
    # being loaded
    if {![string match *python$minor $python] && ![catch {exec $python --version} found]
        && [regexp {^Python (\d+\.\d+)\S*} $found found found_minor] && $found_minor ne $minor} {
        refuse $built_with "which is now $found. $remedy"
    }
}

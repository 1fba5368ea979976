
# The installed image, else the site's own copy.
set image [file join $root "%(image)s"]
set places $image
if {![file isfile $image] && "%(central_image)s" ne ""} {
    set image "%(central_image)s"
    append places " and $image"
}
if {[module-info mode load] && ![file isfile $image]} {
    error "There is no image at $places: install it again with `eb --rebuild %(easyconfig)s`"
}
pushenv SIF $image
pushenv SIFPYTORCH $image

# A runtime that finds both names of a variable reads APPTAINER's alone, so both get ours and what the
# user has under the other name. What is really added is noted: unloading takes away just that.
proc add_to_both {singularity apptainer separator ours} {
    global env
    foreach name [list $singularity $apptainer] {
        set user($name) [expr {[info exists env($name)] ? [split $env($name) $separator] : {}}]
    }
    foreach {from to} [list $singularity $apptainer $apptainer $singularity] {
        set note __PYTORCH_ADDED_TO_$to
        set added [expr {[info exists env($note)] ? [split $env($note) $separator] : {}}]
        if {[module-info mode] ni {remove unload}} {
            set added {}
            foreach entry [concat $user($from) $ours] {
                if {$entry ni $user($to) && $entry ni $added} {
                    lappend added $entry
                }
            }
        }
        if {$added ne {}} {
            setenv $note [join $added $separator]
        }
        foreach entry $added {
            append-path --delim $separator $to $entry
        }
    }
}
# All that EasyBuild installed is visible under its own path, data sets included.
set binds [list "$root/runscripts:/runscripts" "$root/payload:/payload" "%(software)s"]
if {[file isdirectory "%(data)s"]} {
    lappend binds "%(data)s"
}
add_to_both SINGULARITY_BIND APPTAINER_BIND , $binds
add_to_both SINGULARITYENV_PREPEND_PATH APPTAINERENV_PREPEND_PATH : [list /runscripts]

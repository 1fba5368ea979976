
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

# A runtime that finds both names of a variable reads APPTAINER's alone: what the user has under one
# name is added under the other too, and noted, so that unloading takes away just that.
proc add_to_both {singularity apptainer separator ours} {
    global env
    foreach name [list $singularity $apptainer] {
        set user($name) [expr {[info exists env($name)] ? $env($name) : ""}]
    }
    foreach {from to} [list $singularity $apptainer $apptainer $singularity] {
        set note __PYTORCH_COPIED_TO_$to
        set copied [expr {[info exists env($note)] ? $env($note) : ""}]
        if {[module-info mode] ni {remove unload}} {
            set copied [expr {$user($from) ne $user($to) ? $user($from) : ""}]
        }
        if {$copied ne ""} {
            setenv $note $copied
            foreach entry [split $copied $separator] {
                append-path --delim $separator $to $entry
            }
        }
        foreach entry $ours {
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

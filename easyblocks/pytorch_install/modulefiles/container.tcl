
# The installed image. If it does not exist, a copy in a directory of the site.
set places [list [file join $root "%(image)s"]]
foreach directory [list %(central_images)s] {
    lappend places [file join $directory "%(image)s"]
}
set image [lindex $places 0]
foreach place [lreverse $places] {
    if {[file isfile $place]} {
        set image $place
    }
}
if {[module-info mode load] && ![file isfile $image]} {
    # the third argument prevents a stack trace of Environment Modules
    error "image not found: [join $places { or }]. Install it again with `eb --rebuild %(easyconfig)s`" {} \
        MODULES_ERR_GLOBAL
}
pushenv SIF $image
pushenv SIFPYTORCH $image

# Packages that users install: the packed file, unless it was unpacked, or the directory. Unloading uses what loading
# found. (Without `ro`, Apptainer warns at every start that a packed file is not writable. The root of the file is `.`,
# not `/`: options are entries of the list, and a user's own `image-src=/` would be mistaken for ours.)
set environment /user-software/venv/pytorch
set user_software [expr {[info exists env(__PYTORCH_USER_SOFTWARE)] ? $env(__PYTORCH_USER_SOFTWARE) : {}}]
if {[module-info mode] ni {remove unload}} {
    set directory "%(user_software)s"
    if {[file isfile $directory.squashfs] && ![file isfile [file join $directory .unpacked]]} {
        set user_software $directory.squashfs:/user-software:ro,image-src=.
    } else {
        set user_software [expr {[file isdirectory $directory] ? "$directory:/user-software" : {}}]
    }
}
set with_venv true
if {$user_software ne {}} {
    setenv __PYTORCH_USER_SOFTWARE $user_software
    pushenv SINGULARITYENV_VIRTUAL_ENV $environment
    pushenv APPTAINERENV_VIRTUAL_ENV $environment
    set with_venv "source $environment/bin/activate"
}
pushenv WITH_VENV $with_venv

# If both names of a variable are set, a runtime reads only APPTAINER's. So each name receives our entries and those
# that the user has in the other. What is added is recorded, and unloading removes only that.
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
# Binds: runscripts and payload, all that EasyBuild installed (data sets too) under its own path, what the recipe
# names, and the host's files by which programs verify servers.
set binds [list "$root/runscripts:/runscripts" "$root/payload:/payload" "%(software)s"]
foreach bind [list "%(data)s" %(binds)s] {
    if {[file exists [lindex [split $bind :] 0]]} {
        lappend binds $bind
    }
}
foreach name [list %(connection_files)s] {
    if {[info exists env($name)] && [regexp {^/[^,:]*$} $env($name)] && [file isfile $env($name)]} {
        lappend binds $env($name)
    }
}
# the options of an image are entries of the list
lappend binds {*}[split $user_software ,]
add_to_both SINGULARITY_BIND APPTAINER_BIND , $binds
add_to_both SINGULARITYENV_PREPEND_PATH APPTAINERENV_PREPEND_PATH : \
    [list /runscripts $environment/bin [file join $userbase bin]]

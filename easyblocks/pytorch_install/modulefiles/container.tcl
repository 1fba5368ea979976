
# The installed image. If it does not exist, a copy in a directory of the site.
set places [lmap directory [list $root %(central_images)s] {file join $directory "%(image)s"}]
set present [lmap place $places {expr {[file isfile $place] ? $place : [continue]}}]
set image [lindex [concat $present $places] 0]
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
set binds {}
if {$user_software ne {}} {
    lappend binds $user_software
    setenv __PYTORCH_USER_SOFTWARE $user_software
    pushenv SINGULARITYENV_VIRTUAL_ENV $environment
    pushenv APPTAINERENV_VIRTUAL_ENV $environment
    set with_venv "source $environment/bin/activate"
}
pushenv WITH_VENV $with_venv

# Binds: runscripts and payload, all that EasyBuild installed (data sets too) under its own path, and what exists of the
# recipe's, of the profile's, and of the files and directories for caches that the user's variables name.
lappend binds "$root/runscripts:/runscripts" "$root/payload:/payload" "%(software)s"
foreach bind [list "%(data)s" %(binds)s] {
    if {[file exists [lindex [split $bind :] 0]]} {
        lappend binds $bind
    }
}
foreach directory [expr {[info exists env(PYTORCH_BIND)] ? [split $env(PYTORCH_BIND) ,] : {}}] {
    if {[string match /?* $directory]} {
        lappend binds $directory ;# not examined here: its file system may not answer
    }
}
foreach name [list %(connection_files)s] {
    if {[info exists env($name)] && [regexp {^/[^,:]*$} $env($name)] && [file isfile $env($name)]} {
        lappend binds $env($name)
    }
}
foreach name [list %(caches)s] {
    if {![info exists env($name)] || ![regexp {^/[^,:]*[^,:/]} $env($name) wanted]} {
        continue
    }
    set directory $wanted
    while {$directory ne "/" && ![file isdirectory $directory]} { ;# not made yet: one above it, unless the image has its own
        set directory [file dirname $directory]
    }
    if {$directory ne "/" && ($directory eq $wanted || [lindex [file split $wanted] 1] ni [split "%(of_images)s"])} {
        lappend binds $directory
    }
}

# The user's binds are in *_BIND. In an image it has the destinations alone, which jobs submitted there inherit: those of
# ours are dropped. A runtime mounts the user's first, and would warn of a second bind to the same place.
proc destination {bind} {
    return [lindex [split $bind :] [expr {[string first : $bind] > 0}]]
}
set ours [lmap bind $binds {expr {[string first : $bind] > 0 ? [destination $bind] : [continue]}}]
set theirs {}
foreach name {SINGULARITY_BIND APPTAINER_BIND} {
    set note __PYTORCH_DROPPED_FROM_$name
    set entries [expr {[info exists env($name)] ? [split $env($name) ,] : {}}]
    set kept [lmap entry $entries {expr {$entry in $ours ? [continue] : $entry}}]
    if {$entries ne {}} {
        set theirs [lmap entry $kept {destination $entry}] ;# if both are set, the second is read
    }
    if {[module-info mode] in {remove unload} ? [info exists env($note)] : [llength $kept] < [llength $entries]} {
        setenv $note 1
        pushenv $name [join $kept ,]
    }
}
# the options of an image are entries of the list
set entries {}
foreach bind $binds {
    if {[destination $bind] ni $theirs} {
        lappend entries {*}[split $bind ,]
    }
}

# If both names of a list are set, a runtime reads only APPTAINER's. So each receives our entries and those that the user
# has in the other. What is added is recorded, and unloading removes only that.
proc add_to_both {name separator entries} {
    global env
    set lists [list SINGULARITY$name APPTAINER$name]
    set users [lmap list $lists {expr {[info exists env($list)] ? [split $env($list) $separator] : {}}}]
    foreach list $lists present $users {
        set note __PYTORCH_ADDED_TO_$list
        set added {}
        if {[module-info mode] in {remove unload}} {
            set added [expr {[info exists env($note)] ? [split $env($note) $separator] : {}}]
        } else {
            foreach entry [concat {*}$users $entries] {
                if {$entry ne {} && $entry ni $present && $entry ni $added} {
                    lappend added $entry
                }
            }
        }
        if {$added ne {}} {
            setenv $note [join $added $separator]
        }
        foreach entry $added {
            append-path --delim $separator $list $entry
        }
    }
}
add_to_both _BINDPATH , $entries
# The last but one is that of an environment that a user packs and mounts there.
add_to_both ENV_PREPEND_PATH : [list /runscripts $environment/bin /user-software/bin [file join $userbase bin]]

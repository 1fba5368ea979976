
# The installed image. If it cannot be read, a copy in a directory of the site.
set places [lmap directory [list $root %(central_images)s] {file join $directory "%(image)s"}]
set image {}
foreach place $places {
    if {$image eq {} && [file isfile $place] && [file readable $place]} {
        set image $place
    }
}
if {$image eq {}} {
    if {$is_load} {
        # the third argument prevents a stack trace of Environment Modules
        error "image not found, or not readable: [join $places { or }].\
            Install it again with `eb --rebuild %(easyconfig)s`" {} MODULES_ERR_GLOBAL
    }
    set image [lindex $places 0]
}
pushenv SIF $image
pushenv SIFPYTORCH $image

# Packages that users install: the packed file, unless it was unpacked, or the directory. Unloading uses what loading
# found. (Without `ro`, Apptainer warns at every start that a packed file is not writable. The root of the file is `.`,
# not `/`: options are entries of the list, and a user's own `image-src=/` would be mistaken for ours.)
set environment /user-software/venv/pytorch
set user_software {}
if {$is_unload} {
    set user_software [value_of __PYTORCH_USER_SOFTWARE]
} else {
    set directory "%(user_software)s"
    if {[file isfile $directory.squashfs] && ![file isfile $directory/.unpacked]} {
        set user_software $directory.squashfs:/user-software:ro,image-src=.
    } elseif {[file isdirectory $directory]} {
        set user_software $directory:/user-software
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
# recipe's, of the profile's, and of the files that the user's variables name.
lappend binds "$root/runscripts:/runscripts" "$root/payload:/payload" "%(software)s"
foreach bind [list "%(data)s" %(binds)s] {
    if {[file exists [lindex [split $bind :] 0]]} {
        lappend binds $bind
    }
}
foreach directory [split [value_of PYTORCH_BIND] ,] {
    if {[string match /?* $directory]} {
        lappend binds $directory ;# not examined here: its file system may not answer
    }
}
foreach name [list %(connection_files)s] {
    set file [value_of $name]
    if {[regexp {^/[^,:]*$} $file] && [file isfile $file]} {
        lappend binds $file
    }
}

# The user's binds are in *_BIND (if both are set, a runtime reads Apptainer's). A runtime mounts them first, and would
# warn of a second bind to the same place. The options of an image are entries of the list.
proc destination {bind} {
    return [lindex [split $bind :] [expr {[string first : $bind] > 0}]]
}
set users [value_of APPTAINER_BIND]
if {$users eq {}} {
    set users [value_of SINGULARITY_BIND]
}
set theirs [lmap bind [split $users ,] {destination $bind}]
set entries {}
foreach bind $binds {
    if {[destination $bind] ni $theirs} {
        lappend entries {*}[split $bind ,]
    }
}

# If both names of a list are set, a runtime reads only APPTAINER's. So each receives our entries and those that the user
# has in the other. What is added is recorded, and unloading removes only that.
proc add_to_both {name separator entries} {
    set lists [list SINGULARITY$name APPTAINER$name]
    set users [lmap list $lists {split [value_of $list] $separator}]
    foreach list $lists present $users {
        set note __PYTORCH_ADDED_TO_$list
        set added {}
        if {$::is_unload} {
            set added [split [value_of $note] $separator]
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

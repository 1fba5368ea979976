# SPDX-License-Identifier: BSD-3-Clause
# Procedures that set a variable unless the user has exported it, for the cluster profiles and pytorch-easybuild.
# A profile sources this file from its own directory. (The dot in the name, and the missing first line `#%Module`, keep
# this file out of `module avail`.)

# Sets a variable of a profile.
proc policy {name args} {
    if {[llength $args] != 1} {
        # the third argument prevents a stack trace of Environment Modules
        error "policy $name $args: expected one name and one value. Put a value with blanks in double quotes, and a\
            comment on a line of its own" {} MODULES_ERR_GLOBAL
    }
    set value [set_unless_set $name [lindex $args 0] __CLUSTER_SET_]
    report_unsupported_runtime $name $value
}

# On loading, reports a CUDA or ROCm that the site's driver does not support, by PYTORCH_DRIVER_CUDA or
# PYTORCH_DRIVER_ROCM, such as 6.1-7.0. The PyTorch module sets __PYTORCH_RUNTIME before it loads the profile.
proc report_unsupported_runtime {name supported} {
    global env
    lassign [expr {[info exists env(__PYTORCH_RUNTIME)] ? $env(__PYTORCH_RUNTIME) : {}}] kind version
    if {![module-info mode load] || $name ne "PYTORCH_DRIVER_[string toupper $kind]"
        || ![regexp {^(\d[\d.]*)-(\d[\d.]*)$} $supported supported oldest newest]} {
        return
    }
    if {[compare_versions $version $oldest] < 0 || [compare_versions $version $newest] > 0} {
        puts stderr "PyTorch: this module is built for $kind $version, and the site's driver supports $oldest to $newest\
            ($name, [module-info name]). Load a module for one of these: module avail PyTorch"
    }
}

# Returns -1, 0 or 1 for an older, an equal or a newer version. A version without a number is equal in that number.
proc compare_versions {version other} {
    foreach number [split $version .] limit [split $other .] {
        if {$number eq {} || $limit eq {}} {
            return 0
        }
        if {$number != $limit} {
            return [expr {$number < $limit ? -1 : 1}]
        }
    }
    return 0
}

# Sets PYTORCH_BIND, the directories that images see besides those of the module: each of a list that the user may enter.
proc bind_directories {directories} {
    set found {}
    if {[module-info mode] ni {remove unload}} {
        set mounted [mounts /proc/self/mounts]
        foreach directory $directories {
            if {[may_bind $directory $mounted] && ![regexp {[,:]} $directory]} {
                lappend found $directory
            }
        }
    }
    policy PYTORCH_BIND [join $found ,]
}

# Returns the directories of a machine that images do not have: those of / that the Filesystem Hierarchy Standard does not
# name (nor the module), and what is mounted at or below /mnt, /media and /srv.
proc directories_of_machine {} {
    set standard {bin boot dev etc home lib lib32 lib64 libx32 lost+found media mnt opt proc root run sbin srv sys tmp usr
        var runscripts payload user-software}
    set found {}
    foreach name [lsort [glob -nocomplain -tails -directory / *]] {
        if {$name ni $standard} {
            lappend found /$name
        }
    }
    return [concat $found [lsort [lsearch -all -inline -regexp [dict keys [mounts /proc/self/mounts]] {^/(mnt|media|srv)(/|$)}]]]
}

# Returns what is mounted, by the directory: types and options, the visible one last.
proc mounts {file} {
    set found {}
    if {![catch {open $file} channel]} {
        foreach line [split [string trim [read $channel]] \n] {
            lassign [split $line] device place type options
            dict lappend found [subst -nocommands -novariables $place] $type $options ;# \040 is a blank
        }
        close $channel
    }
    return $found
}

# Whether the user may enter a directory. Only local file systems are asked: another may not answer. Automounters are left
# alone, because what they mount later does not appear in a running container.
proc may_bind {directory mounted {links 0}} {
    set path {}
    set rest [file split $directory]
    while {$rest ne {}} {
        set rest [lassign $rest name]
        set path [expr {$name eq ".." ? [file dirname $path] : [file join $path $name]}]
        set mount [expr {[dict exists $mounted $path] ? [dict get $mounted $path] : {}}]
        if {"autofs" in $mount} {
            return 0
        }
        lassign [lrange $mount end-1 end] type options
        if {[regexp {^fuse(\.|$)} $type] && ![regexp {(^|,)allow_other(,|$)} $options]} {
            return [regexp "(^|,)user_id=[user_number](,|$)" $options] ;# closed to all other users
        }
        if {$mount ne {} && $type ni {btrfs ext2 ext3 ext4 exfat f2fs iso9660 ntfs3 overlay ramfs squashfs tmpfs vfat xfs
                                      zfs}} {
            return 1
        }
        if {![catch {file readlink $path} target]} {
            set target [file join [file dirname $path] $target {*}$rest]
            return [expr {$links < 40 && [may_bind $target $mounted [incr links]]}]
        }
    }
    return [expr {[file isdirectory $path] && [file executable $path]}]
}

# Returns the number of this user, whom the name service may not know.
proc user_number {} {
    set channel [open /proc/self/status]
    regexp {\nUid:\s+\d+\s+(\d+)} [read $channel] line number
    close $channel
    return $number
}

# Sets the variables that every cluster needs. A line `policy` below the call overrides one of them.
proc policies_of_every_cluster {} {
    # If a rank dies, Slurm ends the step at once. Otherwise the other ranks wait in a collective until its timeout
    # (srun(1), --kill-on-bad-exit; Slurm's default is 0).
    default_policy SLURM_KILL_BAD_EXIT 1

    # In each rank, torch looks up the name of the rendezvous address. A DNS server that does not answer delays the
    # start by 5 s or 10 s (https://github.com/pytorch/pytorch/issues/159007); with these options, by 1 s for each
    # server (resolv.conf(5), RES_OPTIONS). The runscripts set RES_OPTIONS to this value if there is more than one rank.
    default_policy PYTORCH_DISTRIBUTED_RES_OPTIONS "timeout:1 attempts:1"
}

# Names of the variables that default_policy has set.
set defaults {}

# Sets a variable of a profile to a value that a later line of the profile may override.
proc default_policy {name value} {
    global defaults
    if {![is_set $name]} {
        lappend defaults $name
    }
    policy $name $value
}

# Sets a variable unless the user has exported it, and returns the value in effect. A second variable, `prefix` and the
# name, records that this module set it: unloading unsets only what is recorded. (pushenv cannot do this: in Lmod 8.6's
# Tcl interpreter it saves the new value in place of the user's.)
proc set_unless_set {name value prefix} {
    global env defaults
    set record $prefix$name
    switch [module-info mode] {
        load { set is_ours [expr {![is_set $name] || $name in $defaults}] }
        remove - unload { set is_ours [info exists env($record)] }
        default { set is_ours 1 }
    }
    if {!$is_ours} {
        return [expr {[info exists env($name)] ? $env($name) : $value}]
    }
    # on unload any value will do, but Environment Modules pass it on to the module that is loaded next (switch)
    setenv $name [expr {[module-info mode] in {remove unload} ? {} : $value}]
    setenv $record 1
    return $value
}

# Whether a variable is set. In a switch, Environment Modules keep unset variables in env: ask getenv, if it takes a
# default (Environment Modules 5; not Lmod 8.7).
proc is_set {name} {
    if {![info exists ::env($name)]} {
        return 0
    }
    return [expr {[catch {getenv $name \0} value] || $value ne "\0"}]
}

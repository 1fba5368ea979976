# SPDX-License-Identifier: BSD-3-Clause
# Reads and sets EasyBuild's options, in the environment and in its configuration files; needs .policy.tcl. (The dot in
# the name, and the missing first line `#%Module`, keep this file out of `module avail`.)

# Prefix of the variables that record what set_unless_set has set.
set recorded_by __PYTORCH_EASYBUILD_SET_

# Returns the settings of the configuration files as a dictionary. The last file takes precedence, as in
# easybuild/tools/options.py of EasyBuild 5.
proc easybuild_configuration {} {
    set files {}
    foreach directory [lreverse [split [variable_or XDG_CONFIG_DIRS /etc/xdg] :]] {
        lappend files {*}[lsort [glob -nocomplain -directory [file join $directory easybuild.d] *.cfg]]
    }
    set home [variable_or XDG_CONFIG_HOME [file join [variable_or HOME /] .config]]
    lappend files [file join $home easybuild config.cfg]
    lappend files {*}[split [variable_or EASYBUILD_CONFIGFILES {}] ,]
    set ignored [split [variable_or EASYBUILD_IGNORECONFIGFILES {}] ,]
    set found {}
    foreach file $files {
        if {$file in $ignored || ![file isfile $file] || [catch {open $file} channel]} {
            continue
        }
        foreach line [split [read $channel] \n] {
            if {[regexp {^([\w-]+)\s*[=:]\s*(.*?)\s*$} $line line option value]} {
                dict set found $option $value
            }
        }
        close $channel
    }
    return $found
}

# The value of an option in the configuration files, or {}. %(name)s refers to another option or to a variable. It
# becomes empty for EasyBuild's default paths: an empty entry of a robot path means the same.
proc configured {option} {
    global configuration
    set value [expr {[dict exists $configuration $option] ? [dict get $configuration $option] : {}}]
    for {set depth 0} {$depth < 10 && [regexp {%\((\w[\w-]*)\)s} $value reference name]} {incr depth} {
        set meaning [variable_or $name {}]
        if {[dict exists $configuration $name]} {
            set meaning [dict get $configuration $name]
        }
        set value [string map [list $reference $meaning] $value]
    }
    return $value
}

# The value of an option in the environment or in the configuration files, or {}.
proc setting {option} {
    return [variable_or [variable_of $option] [configured $option]]
}

# Sets an option that is not set.
proc default_setting {option value} {
    global recorded_by
    if {[configured $option] eq {} || [is_set [variable_of $option]]} {
        set_unless_set [variable_of $option] $value $recorded_by
    }
}

# Prepends an entry to a list. If the environment has the list, EasyBuild ignores the configuration files: a new
# variable starts with their entries.
proc prepend_setting {option delimiter entry {none {}}} {
    global recorded_by
    set others [configured $option]
    set value [expr {$others eq {} ? "$entry$none" : "$entry$delimiter$others"}]
    if {[set_unless_set [variable_of $option] $value $recorded_by] ne $value} {
        prepend-path --delim $delimiter [variable_of $option] $entry
    }
}

# Whether this module has set the variable of an option.
proc is_recorded {option} {
    global env recorded_by
    return [info exists env($recorded_by[variable_of $option])]
}

# The variable of an option.
proc variable_of {option} {
    return EASYBUILD_[string map {- _} [string toupper $option]]
}

# The value of a variable, or the default if it is not set.
proc variable_or {name default} {
    global env
    return [expr {[is_set $name] ? $env($name) : $default}]
}

# The first value that is not empty.
proc first_of {args} {
    foreach value $args {
        if {$value ne {}} {
            return $value
        }
    }
}

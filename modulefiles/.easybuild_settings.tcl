# What EasyBuild is told by its configuration files; sourced by pytorch-easybuild, after .policy.tcl. (Its dot and the
# lack of a first line `#%Module` keep it out of `module avail`.)

# Settings of the configuration files, by option: the last file wins, as in easybuild/tools/options.py of EasyBuild 5.
proc easybuild_configuration {} {
    set files {}
    foreach directory [lreverse [split [variable_or XDG_CONFIG_DIRS /etc/xdg] :]] {
        lappend files {*}[lsort [glob -nocomplain -directory [file join $directory easybuild.d] *.cfg]]
    }
    lappend files [file join [variable_or XDG_CONFIG_HOME [file join [variable_or HOME /] .config]] easybuild config.cfg]
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

# What the configuration files say of an option, else {}. %(name)s is another option there or a variable; EasyBuild's
# own default paths are left out, as an empty entry of a robot path stands for them.
proc configured {option} {
    global configuration
    set value [expr {[dict exists $configuration $option] ? [dict get $configuration $option] : {}}]
    for {set depth 0} {$depth < 10 && [regexp {%\((\w[\w-]*)\)s} $value reference name]} {incr depth} {
        set meant [expr {[dict exists $configuration $name] ? [dict get $configuration $name] : [variable_or $name {}]}]
        set value [string map [list $reference $meant] $value]
    }
    return $value
}

# The value of an option in the environment, else in the configuration files, else {}.
proc setting {option} {
    return [variable_or [variable_of $option] [configured $option]]
}

# Gives an option a value unless it has one.
proc default_setting {option value} {
    if {[configured $option] eq {} || [is_set [variable_of $option]]} {
        set_unless_set [variable_of $option] $value __PYTORCH_EASYBUILD_SET_
    }
}

# Puts an entry before what a list has, in the environment or in the configuration files; EasyBuild reads one of them.
proc prepend_setting {option delimiter entry {none {}}} {
    set others [configured $option]
    set value [expr {$others eq {} ? "$entry$none" : "$entry$delimiter$others"}]
    if {[set_unless_set [variable_of $option] $value __PYTORCH_EASYBUILD_SET_] ne $value} {
        prepend-path --delim $delimiter [variable_of $option] $entry
    }
}

# The variable of an option.
proc variable_of {option} {
    return EASYBUILD_[string map {- _} [string toupper $option]]
}

# Value of a variable, or another where it is not set.
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


# Manual pages of the commands; without MANPATH, man finds them beside bin/. bash completes the commands' options.
if {[info exists env(MANPATH)] && $env(MANPATH) ne {}} {
    prepend-path MANPATH [file join $root %(manuals)s]
}
if {[info commands complete] ne {}} {
    foreach {command options} [list %(options)s] {
        complete bash $command "-o bashdefault -o default -W '$options'"
    }
}


# Manual pages, before those of the system, and the commands' options, which bash completes.
prepend-path MANPATH [file join $root %(manuals)s]
append-path MANPATH {}
if {[info commands complete] ne {}} {
    foreach {command options} [list %(options)s] {
        complete bash $command "-o bashdefault -o default -W '$options'"
    }
}

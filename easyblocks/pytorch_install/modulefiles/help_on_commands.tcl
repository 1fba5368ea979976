
# Manual pages of the commands: man finds them beside bin/, unless MANPATH names all of its directories. (Without this
# condition, Lmod would change the empty entry in a MANPATH.) bash completes the commands' options.
if {[info exists env(MANPATH)] && [string first :: ":$env(MANPATH):"] < 0} {
    prepend-path MANPATH [file join $root %(manuals)s]
}
if {[info commands complete] ne {}} {
    foreach {command options} [list %(options)s] {
        complete bash $command "-o bashdefault -o default -W '$options'"
    }
}

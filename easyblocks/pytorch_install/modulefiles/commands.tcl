
# Commands of packages that users install. Unloading removes what loading added.
set commands [expr {[info exists env(__PYTORCH_USERS_COMMANDS)] ? $env(__PYTORCH_USERS_COMMANDS) : {}}]
if {[module-info mode] ni {remove unload}} {
    set commands "$userbase/%(users)s%(more)s"
}
if {$commands ne {}} {
    setenv __PYTORCH_USERS_COMMANDS $commands
    prepend-path PATH $commands
}
foreach directory [list %(directories)s] {
    prepend-path PATH [file join $root $directory]
}


# Commands of what users install, behind the module's own. Unloading takes away what loading added.
set commands [expr {[info exists env(__PYTORCH_USERS_COMMANDS)] ? $env(__PYTORCH_USERS_COMMANDS) : {}}]
if {[module-info mode] ni {remove unload}} {
    set commands [file join $userbase bin]
}
if {$commands ne {}} {
    setenv __PYTORCH_USERS_COMMANDS $commands
    prepend-path PATH $commands
}
prepend-path PATH [file join $root venv bin]
prepend-path PATH [file join $root bin]

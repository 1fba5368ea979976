
# Commands of packages that users install, after the module's own on PATH. Unloading removes what loading added.
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


# What a user installs goes into a directory of this user and this installation; ~/.local stays out. Modules written
# before had one directory for all installations of a version: all of them use it until the user moves it.
set shared [file join [expr {[info exists env(HOME)] ? $env(HOME) : "/"}] "%(directory)s"]
set userbase $shared-%(identity)s
if {[file isdirectory $shared] && ![file isdirectory $userbase]} {
    set userbase $shared
}
pushenv PYTHONUSERBASE $userbase
# Extensions that torch compiles for this user fit this torch alone.
set extensions $userbase/torch_extensions
set constraints $root/constraints.txt
# A module that this one replaces has left its values in env: they are noted.
set replaced [expr {[info exists env(__PYTORCH_PACKAGES)] ? [split $env(__PYTORCH_PACKAGES)] : {}}]
set users [expr {[info exists env(TORCH_EXTENSIONS_DIR)] ? $env(TORCH_EXTENSIONS_DIR) : {}}]
pushenv TORCH_EXTENSIONS_DIR [expr {$users in [list {} {*}$replaced] ? $extensions : $users}]
# What pip and uv leave as it is, after the user's own files.
foreach name [list %(constrained)s] {
    set files {}
    foreach file [expr {[info exists env($name)] ? [split $env($name)] : {}}] {
        if {$file ni [list {} $constraints {*}$replaced]} {
            lappend files $file
        }
    }
    pushenv $name [join [lappend files $constraints]]
}
setenv __PYTORCH_PACKAGES [list $extensions $constraints]


# Packages of `pip install --user` go into a directory of this user and this installation, not into ~/.local. Earlier
# modules had one directory for all installations of a version: if it exists, they share it until the user moves it.
set shared [file join [expr {[info exists env(HOME)] ? $env(HOME) : "/"}] "%(directory)s"]
set userbase $shared-%(identity)s
if {[file isdirectory $shared] && ![file isdirectory $userbase]} {
    set userbase $shared
}
if {[module-info mode] in {remove unload} && [info exists env(__PYTORCH_PACKAGES)]} {
    regexp {^(.*?)/torch_extensions} $env(__PYTORCH_PACKAGES) _ userbase ;# what loading found: the user may have moved it
}
pushenv PYTHONUSERBASE $userbase
# Extensions that torch compiles for this user fit only this torch.
set extensions $userbase/torch_extensions
# A module that this one replaces leaves its values in env; it recorded them.
set replaced [expr {[info exists env(__PYTORCH_PACKAGES)] ? [split $env(__PYTORCH_PACKAGES)] : {}}]
set users [expr {[info exists env(TORCH_EXTENSIONS_DIR)] ? $env(TORCH_EXTENSIONS_DIR) : {}}]
pushenv TORCH_EXTENSIONS_DIR [expr {$users in [list {} {*}$replaced] ? $extensions : $users}]
# Of pip, after the user's own paths.
set recorded [list $extensions]
foreach name [list %(variables)s] path [list %(paths)s] {
    set files {}
    foreach file [expr {[info exists env($name)] ? [split $env($name)] : {}}] {
        if {$file ni [list {} $root/$path {*}$replaced]} {
            lappend files $file
        }
    }
    pushenv $name [join [lappend files $root/$path]]
    lappend recorded $root/$path
}
setenv __PYTORCH_PACKAGES $recorded

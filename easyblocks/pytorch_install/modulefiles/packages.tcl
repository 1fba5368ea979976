
# Packages of `pip install --user` go into a directory of this user and this installation, not into ~/.local.
set home [value_of HOME]
if {$is_load && [string index $home 0] ne "/"} {
    # the third argument prevents a stack trace of Environment Modules
    error "HOME is not an absolute path: '$home'. Export HOME, then load the module again" {} MODULES_ERR_GLOBAL
}
set userbase [file join $home "%(directory)s-%(identity)s"]
pushenv PYTHONUSERBASE $userbase
# Extensions that torch compiles for this user fit only this torch.
set extensions [value_of TORCH_EXTENSIONS_DIR]
pushenv TORCH_EXTENSIONS_DIR [expr {$extensions ne {} ? $extensions : "$userbase/torch_extensions"}]
# Lists of pip: the user's own paths, then the module's.
foreach name [list %(variables)s] path [list %(paths)s] {
    pushenv $name [string trimleft "[value_of $name] $root/$path"]
}

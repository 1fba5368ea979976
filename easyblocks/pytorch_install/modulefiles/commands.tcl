
# Commands of packages that users install, after those of the module.
prepend-path PATH "$userbase/%(users)s%(more)s"
foreach directory [list %(directories)s] {
    prepend-path PATH [file join $root $directory]
}

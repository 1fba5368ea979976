
# What the image sees of the host: /tmp, the home directory, the software and data that EasyBuild installed, and what
# the recipe names, under their own paths; runscripts and payload also where other images have them. The runscripts
# recognize the image by /runscripts.
set mounts [list $root/runscripts:/runscripts $root/payload:/payload]
foreach mount [list /tmp [expr {[info exists env(HOME)] ? $env(HOME) : {}}] "%(software)s" "%(data)s" %(binds)s] {
    if {$mount ne {} && [file exists [lindex [split $mount :] 0]]} {
        lappend mounts [expr {[string first : $mount] < 0 ? "$mount:$mount" : $mount}]
    }
}
pushenv PYTORCH_MOUNTS [join $mounts ,]

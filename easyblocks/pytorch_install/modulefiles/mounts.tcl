
# What the image sees of the host: /tmp, the home directory, the software and data that EasyBuild installed, and what
# the recipe and the profile name, under their own paths; runscripts and payload also where other images have them. The runscripts
# recognize the image by /runscripts.
set mounts [list $root/runscripts:/runscripts $root/payload:/payload]
foreach mount [list /tmp [expr {[info exists env(HOME)] ? $env(HOME) : {}}] "%(software)s" "%(data)s" %(binds)s] {
    if {$mount ne {} && [file exists [lindex [split $mount :] 0]]} {
        lappend mounts [expr {[string first : $mount] < 0 ? "$mount:$mount" : $mount}]
    }
}
foreach directory [expr {[info exists env(PYTORCH_BIND)] ? [split $env(PYTORCH_BIND) ,] : {}}] {
    if {[string match /?* $directory]} {
        lappend mounts $directory:$directory
    }
}
pushenv PYTORCH_MOUNTS [join $mounts ,]


# What the image sees of the host: /tmp, the home directory, the software and data that EasyBuild installed, and what
# the recipe and the profile name, under their own paths; runscripts and payload also where other images have them. The
# runscripts recognize the image by /runscripts.
set mounts [list $root/runscripts:/runscripts $root/payload:/payload]
foreach mount [list /tmp [value_of HOME] "%(software)s" "%(data)s" %(binds)s] {
    if {![file exists [lindex [split $mount :] 0]]} {
        continue
    }
    if {[string first : $mount] < 0} {
        set mount $mount:$mount
    }
    lappend mounts $mount
}
foreach directory [split [value_of PYTORCH_BIND] ,] {
    if {[string match /?* $directory]} {
        lappend mounts $directory:$directory
    }
}
pushenv PYTORCH_MOUNTS [join $mounts ,]

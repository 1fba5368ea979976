"""The commands of a module system, without one."""

from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
POLICY = TREE / "modulefiles" / "cluster" / ".policy.tcl"

#: The commands of a module system that .policy.tcl calls; what they set is in env at once, as under both systems.
MODULE_SYSTEM = """
set mode [lindex $argv 0]
proc module-info {what {wanted {}}} {
    global mode
    if {$what eq "name"} { return cluster/here }
    return [expr {$wanted eq {} ? $mode : $wanted eq $mode}]
}
proc setenv {name value} { set ::env($name) $value }
source [lindex $argv 1]
policy {*}[lrange $argv 2 end]
"""

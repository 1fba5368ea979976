"""What .policy.tcl prints when a cluster profile is loaded, without a module system."""

import shutil
import subprocess
from pathlib import Path

import pytest

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


@pytest.fixture
def report(tmp_path):
    """A function that loads a profile of one line, and returns what is on standard error."""
    if shutil.which("tclsh") is None:
        pytest.skip("tclsh is not installed: Lmod and Environment Modules bring it")
    script = tmp_path / "load.tcl"
    script.write_text(MODULE_SYSTEM)

    def load(runtime, name, value, mode="load", **env):
        if runtime:
            env["__PYTORCH_RUNTIME"] = runtime
        result = subprocess.run(
            ["tclsh", script, mode, POLICY, name, value],
            env={"PATH": "/usr/bin:/bin", **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (result.returncode, result.stdout) == (0, ""), result.stderr
        return result.stderr

    return load

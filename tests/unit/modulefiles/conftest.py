"""Runs the procedures of the cluster profiles, without a module system."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

POLICY = Path(__file__).resolve().parents[3] / "modulefiles" / "cluster" / ".policy.tcl"

#: The commands of a module system that .policy.tcl calls; what they set is in env at once, as under both systems.
MODULE_SYSTEM = """
proc module-info {what {wanted {}}} {
    global mode
    if {$what eq "name"} { return cluster/here }
    return [expr {$wanted eq {} ? $mode : $wanted eq $mode}]
}
proc setenv {name value} { set ::env($name) $value }
"""


@pytest.fixture
def tcl(tmp_path):
    """A function that runs lines of Tcl after those of the profiles, as an ordinary user; returns the process."""
    if shutil.which("tclsh") is None:
        pytest.skip("tclsh is not installed: Lmod and Environment Modules bring it")
    script = tmp_path / "lines.tcl"

    def run(lines, mode="load", **env):
        script.write_text(f"set mode {mode}\n{MODULE_SYSTEM}\nsource {POLICY}\n{lines}\n")
        command = ["tclsh", script]
        if os.geteuid() == 0:  # root may enter every directory
            command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *command]
            for path in (tmp_path, *tmp_path.parents[:-2]):
                path.chmod(path.stat().st_mode | 0o055)
        env = {"PATH": "/usr/bin:/bin", **env}
        result = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
        )
        assert result.returncode == 0, result.stderr
        return result

    return run

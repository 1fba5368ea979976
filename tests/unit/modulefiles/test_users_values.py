"""What a user exported takes precedence over a profile, with the getenv of each module system."""

import shutil
import subprocess

import pytest
from module_system import MODULE_SYSTEM, POLICY

GETENV = {
    "Lmod 8.6": "",
    "Lmod 8.7": "proc getenv {var} { return [expr {[info exists ::env($var)] ? $::env($var) : {}}] }",
    "Environment Modules 5": "proc getenv {var {value {}}} {"
    " return [expr {[info exists ::env($var)] ? $::env($var) : $value}] }",
}


@pytest.mark.parametrize("system", GETENV)
@pytest.mark.parametrize(("own", "expected"), [({}, "ours"), ({"NCCL_X": "mine"}, "mine"), ({"NCCL_X": ""}, "")])
def test_an_exported_variable_takes_precedence(tmp_path, system, own, expected):
    if shutil.which("tclsh") is None:
        pytest.skip("tclsh is not installed: Lmod and Environment Modules bring it")
    script = tmp_path / "load.tcl"
    script.write_text(f"{GETENV[system]}\n{MODULE_SYSTEM}\nputs $env(NCCL_X)")
    result = subprocess.run(
        ["tclsh", script, "load", POLICY, "NCCL_X", "ours"],
        env={"PATH": "/usr/bin:/bin", **own},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (result.stdout, result.stderr) == (f"{expected}\n", "")

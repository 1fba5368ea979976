"""What a user exported takes precedence over a profile, with the getenv of each module system."""

import pytest

GETENV = {
    "Lmod 8.6": "",
    "Lmod 8.7": "proc getenv {var} { return [expr {[info exists ::env($var)] ? $::env($var) : {}}] }",
    "Environment Modules 5": "proc getenv {var {value {}}} {"
    " return [expr {[info exists ::env($var)] ? $::env($var) : $value}] }",
}


@pytest.mark.parametrize("system", GETENV)
@pytest.mark.parametrize(("own", "expected"), [({}, "ours"), ({"NCCL_X": "mine"}, "mine"), ({"NCCL_X": ""}, "")])
def test_an_exported_variable_takes_precedence(tcl, system, own, expected):
    assert tcl(f"{GETENV[system]}\npolicy NCCL_X ours\nputs $env(NCCL_X)", **own).stdout == f"{expected}\n"

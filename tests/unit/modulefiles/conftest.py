"""What .policy.tcl prints when a cluster profile is loaded, without a module system."""

import shutil
import subprocess

import pytest
from module_system import MODULE_SYSTEM, POLICY


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

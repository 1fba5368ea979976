"""The shell code that `./demo --env` prints: only valid names, and quoted values."""

import os
import subprocess

from testbed import shell
from testbed.layout import Layout


def test_odd_names_and_values_are_never_executed(tmp_path, monkeypatch):
    mark = tmp_path / "executed"
    for name in (f"SLURM_A;touch {mark};B", f"EASYBUILD_$(touch {mark})", f"SLURM_A\ntouch {mark}\nB", "SLURM_\u00e9"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    odd = f"/odd '\"; touch {mark}; $(touch {mark})\n`touch {mark}`"
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{odd}")
    monkeypatch.setattr(shell, "find_lmod", lambda: "/dev/null")
    code = shell.environment_code(Layout(tmp_path / "testbed"))
    script = f'module() {{ :; }}\n{code}\n[ -z "$SLURM_JOB_ID" ] && echo "$PATH"'
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.stdout.endswith(f":{odd}\n")
    assert not mark.exists()

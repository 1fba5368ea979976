"""The line of user-software by which Python sees the packages of `pip install --user`."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[3] / "easyblocks/pytorch_install/programs/make_venv.py"


def test_a_user_base_that_is_the_environment_itself_is_read_once(tmp_path):
    """CSCS's pages set PYTHONUSERBASE to the prefix of the Python on which an environment is made."""
    for name, options in (("module", []), ("own", ["--system-site-packages"])):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, tmp_path / name], check=True)
    (packages,) = (tmp_path / "module").glob("lib/python*/site-packages")
    (packages / "zz_image.pth").write_text(runpy.run_path(PROGRAM)["USER_SITE"])
    (packages / "mine.py").touch()
    environment = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "module")}
    for name in ("module", "own"):
        code = "import mine, sys; print(len(sys.path) == len(set(sys.path)))"
        python = tmp_path / name / "bin/python"
        result = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout, result.stderr) == (0, "True\n", "")

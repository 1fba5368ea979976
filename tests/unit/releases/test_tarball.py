"""The tarball of a release works without git."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from repository import TREE

from testbed.packages import find_lmod
from tools.releases import files

VERSION = files.version_of(TREE / "pyproject.toml")


@pytest.fixture
def unpacked(tmp_path):
    """The directory that the tarball of the last commit unpacks to."""
    if not (TREE / ".git").exists():
        pytest.skip("This tree is no git repository.")
    name = f"pytorch-easybuild-{VERSION}"
    tarball = tmp_path / f"{name}.tar.gz"
    subprocess.run(["git", "archive", f"--prefix={name}/", f"--output={tarball}", "HEAD"], cwd=TREE, check=True)
    return files.unpack(tarball, tmp_path)


@pytest.mark.thorough
def test_the_line_of_the_page_finds_the_recipes_of_the_tarball(unpacked, tmp_path):
    line = re.search(r"^    (eb --include.*)$", (TREE / "docs" / "install.md").read_text(), re.MULTILINE)[1]
    eb = Path(sys.executable).with_name("eb")
    script = f"tree={unpacked}\n{line} --dry-run"
    profile = find_lmod()
    if profile is None:
        pytest.skip("Lmod is not installed.")
    env = {
        "HOME": str(tmp_path),
        "PATH": f"{eb.parent}:/usr/bin:/bin",
        "EB_PYTHON": sys.executable,
        "LMOD_CMD": str(profile.parents[1] / "libexec" / "lmod"),
        "EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1",
    }
    done = subprocess.run(["bash", "-c", script], env=env, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"* [ ] {unpacked}/easyconfigs/p/PyTorch/" in done.stdout

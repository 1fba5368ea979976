"""A release: one version everywhere, and a tarball that works without git."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from testbed.packages import find_lmod

TREE = Path(__file__).resolve().parents[3]
VERSION = re.search(r'^version = "(.*)"$', (TREE / "pyproject.toml").read_text(), re.MULTILINE)[1]


def test_pages_have_the_version_of_the_project():
    assert re.search(r"^## (\S+)", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == VERSION
    for page in ("docs/install.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"pytorch-easybuild-([\d.]+\d)", (TREE / page).read_text())) == {VERSION}


@pytest.fixture
def unpacked(tmp_path):
    """The directory that the tarball of the last commit unpacks to."""
    if not (TREE / ".git").exists():
        pytest.skip("This tree is no git repository.")
    page = (TREE / "CONTRIBUTING.md").read_text()
    command = re.search(r"^    (git archive .*)$", page, re.MULTILINE)[1].split()
    tarball = f"pytorch-easybuild-{VERSION}.tar.gz"
    output = [word.replace(tarball, str(tmp_path / tarball)) for word in command]
    subprocess.run(output, cwd=TREE, check=True)
    with tarfile.open(tmp_path / tarball) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / f"pytorch-easybuild-{VERSION}"


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

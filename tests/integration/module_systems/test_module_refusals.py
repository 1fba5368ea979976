"""What loading refuses: a Python or an image that cannot be read, and a home directory without a path."""

import os
import shutil
import subprocess

import pytest
from written_modules import CONTAINER, VENV

pytestmark = pytest.mark.testbed

#: An ordinary user: root may read everything.
USER = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]


def load(site):
    """Load the module as an ordinary user; return the process."""
    modules = f"export MODULEPATH={site.root}/modules/all"
    script = f"{site.system.code}\n{modules}\nmodule load {site.name}; echo $? ${{EBROOTPYTORCH-unset}}"
    for path in (site.root, *site.root.parents[:-1]):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o055)
    command = [*(USER if os.geteuid() == 0 else []), "bash", "-c", script]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=300)


def damage(path, how):
    """Put something that cannot be read in place of a file, or of its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to("/nowhere/file")
    elif how != "gone":  # also in "order"
        path.write_text("content")
    if how == "file":
        path.chmod(0)
    if how == "directory":
        path.parent.chmod(0)


@pytest.fixture(params=["gone", "link", "file", "directory"])
def how(request):
    """What is wrong with a file."""
    return request.param


def test_a_python_that_cannot_be_read_is_refused(written, how):
    """Otherwise, the next Python on PATH would run, without a message."""
    site = written[VENV]
    library, kept = site.installation / "venv/lib", site.installation / "venv/kept"
    library.rename(kept)
    (python,) = kept.glob("python3*")
    try:
        damage(library / python.name / "os.py", "order")
        assert load(site).stdout == f"0 {site.installation}\n"
        damage(library / python.name / "os.py", how)
        result = load(site)
    finally:
        (library / python.name).chmod(0o755)
        shutil.rmtree(library)
        kept.rename(library)
    assert result.stdout == "1 unset\n"
    assert "which cannot be read on this host" in " ".join(result.stderr.split())


def test_an_image_that_cannot_be_read_is_refused(image_site, how):
    site = image_site
    if how == "directory":
        pytest.skip("the module's own directory, which has the profile, too")
    image = site.installation / f"{CONTAINER}.sif"
    target = image.readlink()
    try:
        damage(image, how)
        result = load(site)
    finally:
        image.unlink(missing_ok=True)
        image.symlink_to(target)
    assert result.stdout == "1 unset\n"
    assert "image not found, or not readable" in " ".join(result.stderr.split())


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_absolute_path_is_refused(site, home):
    result = site.run_unchecked(f"export HOME={home}; module load {site.name}; echo $? ${{EBROOTPYTORCH-unset}}")
    assert result.stdout == "1 unset\n"
    assert f"HOME is not an absolute path: '{home}'." in " ".join(result.stderr.split())

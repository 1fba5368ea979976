"""The environment for packages that users install; the image's Python is a stand-in."""

import os
import shutil

import pytest
from easybuild.tools.build_log import EasyBuildError

from pytorch_install.user_software import UserSoftware

pytestmark = pytest.mark.early


def image_python(script):
    """The command of an image's Python that runs `script`, with TASK and BIND."""
    return ["bash", "-c", f"cat >/dev/null; TASK=$2 BIND=$SINGULARITY_BIND; SOURCE=${{BIND%%:*}}; {script}"]


MAKE = 'if [ "$TASK" = make ]; then mkdir -p $SOURCE/venv/pytorch/bin; echo "$BIND" > $SOURCE/venv/pytorch/made; fi'


@pytest.fixture
def software(prefix, tmp_path):
    """A directory of installations."""
    return tmp_path / "software" / "PyTorch"


@pytest.fixture
def install(software):
    """A function that makes the user-software of a version, as an installation does."""

    def install(version="1.0", script=MAKE):
        installdir = software / version
        shutil.rmtree(installdir, ignore_errors=True)  # as EasyBuild does
        installdir.mkdir(parents=True)
        user_software = UserSoftware(str(installdir))
        user_software.finish(user_software.prepare(image_python(script)))
        shutil.rmtree(user_software.part, ignore_errors=True)  # as the installation does

    return install


def check(status, unless="-"):
    """A script that makes what it is asked to, and whose check ends with a status unless what is mounted is right."""
    return f'{MAKE}; [ "$TASK $BIND" = "check {unless}" ] || [ "$TASK" = make ] || exit {status}'


def test_an_environment_of_another_user_that_does_not_fit_stops_the_installation_before_it_is_final(
    software, install, monkeypatch
):
    install()
    monkeypatch.setattr(os, "access", lambda path, _: ".user-software/1.0" not in str(path))
    with pytest.raises(EasyBuildError, match="No write permission: .*/1.0, where the image needs a new environment"):
        install(script=check(3))


@pytest.mark.parametrize("kept", [1, 2])
def test_the_next_installation_completes_a_replacement_that_was_killed(software, install, monkeypatch, kept):
    install()
    (software / ".user-software/1.0/venv/pytorch/mine").touch()
    (software / ".user-software/1.0.squashfs").write_text("mine")
    renames = iter(range(kept))
    rename = os.rename
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *paths: (next(renames), rename(*paths)))
        with pytest.raises(StopIteration):
            install(script=check(3))
    install(script=check(3))
    store = software / ".user-software"
    assert [path.read_text() for path in store.glob("1.0.squashfs_*")] == ["mine"]
    assert len(list(store.glob("1.0/venv/pytorch_*/mine"))) == 1
    assert os.listdir(store / "1.0/venv/pytorch") != []
    assert not (store / "1.0/venv/pytorch/mine").exists()


@pytest.mark.parametrize("before", [None, "def explain_constraints():"])
def test_a_pip_command_that_is_missing_or_of_an_earlier_version_is_written_again(software, install, before):
    install()
    pip = software / ".user-software/1.0/venv/pytorch/bin/pip"
    if before:
        pip.write_text(before)
    install(script=f"{MAKE}; [ $TASK != make ] || echo new > $SOURCE/venv/pytorch/bin/pip")
    assert pip.read_text() == "new\n"


@pytest.mark.parametrize(
    ("files", "bind"),
    [
        (["1.0/venv/pytorch/mine"], "1.0:/user-software"),
        (["1.0.squashfs"], "1.0.squashfs:/user-software:ro,image-src=/"),
        (["1.0/venv/pytorch/mine", "1.0.squashfs", "1.0/.unpacked"], "1.0:/user-software"),
    ],
    ids=["directory", "packed", "unpacked again"],
)
def test_an_environment_is_checked_as_the_module_mounts_it_and_kept(software, install, files, bind):
    store = software / ".user-software"
    for path in [store / name for name in files]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    install(script=check(3, unless=f"{store}/{bind}"))
    assert sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file()) == sorted(files)

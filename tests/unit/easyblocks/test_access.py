"""Who can read an installation: umask and group before the long steps, and the host's Python that a venv links to."""

import grp
import os
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import update_build_option

from pytorch_install import python_base
from pytorch_install.access import check_access
from pytorch_install.tree import find_profile

pytestmark = pytest.mark.early

GROUP = grp.getgrgid(os.getegid()).gr_name


@pytest.fixture
def umask():
    """A function that sets the umask until the end of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.fixture
def public():
    """A directory that all users can enter, unlike those of pytest."""
    directory = Path("/tmp") / f"public-{os.getpid()}"  # noqa: S108 (removed, and nothing else is in it)
    directory.mkdir(mode=0o755)
    yield directory
    for path in sorted(directory.rglob("*"), reverse=True):
        path.unlink() if path.is_symlink() or path.is_file() else path.rmdir()
    directory.rmdir()


@pytest.mark.parametrize(
    ("mask", "options", "error", "warning"),
    [
        (0o022, {}, None, False),
        (0o000, {}, None, True),
        (
            0o077,
            {},
            "umask 077: other users could not load the module. Run `eb --umask=022`, or `eb --umask=077` if",
            False,
        ),
        (0o077, {"umask": "077"}, None, False),
        (0o027, {}, "umask 027: other users could not load", False),
        (0o027, {"group": GROUP, "umask": "027"}, None, False),
        (
            0o077,
            {"group": GROUP, "umask": "077"},
            "umask 077: group .* could not load the module. Run `eb --umask=027`",
            False,
        ),
        (0o027, {"group": "daemon", "umask": "027"}, "Group daemon cannot enter .*/modules, .*`chgrp daemon", False),
    ],
)
def test_those_who_shall_use_the_module_can_read_it_or_eb_ends_with_an_error(
    prefix, umask, public, capfd, mask, options, error, warning
):
    for name, value in options.items():
        update_build_option(name, value)
    (public / "modules").mkdir(mode=0o750)  # by `eb` itself, before it knows the group
    umask(mask)
    if error:
        with pytest.raises(EasyBuildError, match=error):
            check_access(str(public / "software/PyTorch/1.0"), str(public / "modules/all"))
    else:
        check_access(str(public / "software/PyTorch/1.0"), str(public / "modules/all"))
    assert ("all users can change this installation" in capfd.readouterr().err) is warning


@pytest.mark.parametrize(
    ("mode", "mask", "options", "is_error"),
    [
        pytest.param(0o700, 0o022, {}, True, id="for all"),
        pytest.param(0o700, 0o027, {"group": GROUP}, True, id="for a group"),
        pytest.param(0o700, 0o077, {}, False, id="for this user"),
        pytest.param(0o755, 0o022, {}, False, id="a Python of all users"),
    ],
)
def test_a_python_that_other_users_cannot_read_is_an_error_that_names_another_one(
    prefix, umask, public, monkeypatch, mode, mask, options, is_error
):
    for name, value in options.items():
        update_build_option(name, value)
    host = {"executable": f"{public}/host/bin/python3.11", "paths": {"stdlib": f"{public}/host/lib"}}
    monkeypatch.setattr(python_base, "facts", {"python3.11": host}.get)
    (public / "host" / "lib").mkdir(parents=True)
    (public / "host").chmod(mode)
    (public / "bin").mkdir()
    (public / "bin" / "python3.11").write_text("")
    (public / "bin" / "python3.11").chmod(0o755)
    monkeypatch.setenv("PATH", f"{public}/bin")
    umask(mask)
    if is_error:
        expected = f"Other users cannot read {public}/host, which .*python3.11 needs. .* first on PATH: {public}/bin"
        with pytest.raises(EasyBuildError, match=expected):
            python_base.require_readable("python3.11", f"{public}/software/1.0")
    else:
        python_base.require_readable("python3.11", f"{public}/software/1.0")


def test_a_profile_of_the_site_is_found_on_modulepath_but_not_in_installations(prefix, tmp_path, monkeypatch):
    places = [tmp_path / "software" / "PyTorch" / "1.0" / "modulefiles", tmp_path / "site", tmp_path / "lua"]
    for place, name in zip(places, ("mysite", "mysite", "other.lua"), strict=True):
        (place / "cluster").mkdir(parents=True)
        (place / "cluster" / name).touch()
    monkeypatch.setenv("MODULEPATH", ":".join(["", *map(str, places)]))
    assert find_profile("mysite") == str(tmp_path / "site/cluster/mysite")
    assert find_profile("other") == str(tmp_path / "lua/cluster/other.lua")
    assert find_profile("lumi").endswith("modulefiles/cluster/lumi")
    with pytest.raises(EasyBuildError, match="cluster/nowhere in .* and on MODULEPATH. .*lumi.*`module use`"):
        find_profile("nowhere")

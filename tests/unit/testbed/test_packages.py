"""The distribution's packages: found, or installed if that is permitted."""

import pytest

from testbed import packages
from testbed.layout import Layout

UPDATE = "noninteractive -q -y update"
INSTALL = "noninteractive -q -y install --no-install-recommends libopenmpi-dev strace"
APT = """#!/bin/sh
cd "${0%/*}/.." && echo "$DEBIAN_FRONTEND $*" >>apt.log
! tail -n 1 apt.log | grep -qe "$(cat failing 2>/dev/null || echo none)"
"""
WANTED = {"openmpi-bin": "mpirun.openmpi", "libopenmpi-dev": "/usr/lib/*/of-no-package", "strace": "strace"}


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """A function that returns the command lines of apt-get; the file `failing` has the command that fails."""
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", APT), ("mpirun.openmpi", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(packages, "SYSTEM_PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(packages, "privilege", lambda: [])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return lambda: (tmp_path / "apt.log").read_text().splitlines()


@pytest.fixture
def layout(tmp_path):
    """The Layout of a testbed."""
    layout = Layout(tmp_path / "testbed")
    layout.claim()
    return layout


def test_what_is_missing_is_installed_without_starting_services(lines, layout, tmp_path):
    assert packages.install_optional(layout, WANTED) is None
    assert lines() == [UPDATE, INSTALL]
    assert not (tmp_path / "policy-rc.d").exists()
    assert packages.install_optional(layout, {"openmpi-bin": "mpirun.openmpi"}) is None
    assert len(lines()) == 2


def test_a_user_who_may_not_install_gets_the_line_for_an_administrator(lines, layout, monkeypatch):
    monkeypatch.setattr(packages, "privilege", lambda: None)
    assert "`apt-get install libopenmpi-dev strace`" in packages.install_optional(layout, WANTED)


@pytest.mark.parametrize(
    ("failing", "advice"),
    [("-y update", "Check that the package archive is reachable"), ("install", "Install them manually")],
)
def test_a_failure_is_reported_with_what_to_do(lines, layout, tmp_path, failing, advice):
    (tmp_path / "failing").write_text(failing)
    assert advice in packages.install_optional(layout, {"strace": "strace"})
    assert not (tmp_path / "policy-rc.d").exists()

"""The distribution's packages: found, or installed if that is permitted."""

import pytest

from testbed import packages
from testbed.layout import Layout

OPENMPI_5 = "mpirun (Open MPI) 5.0.7\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
DEBIANS_OPENMPI_4 = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
MPICH_4 = "HYDRA build details:\n    Version:                                 4.0.2\n"


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """A function that creates a command that prints a text. No other commands and files are found."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setattr(packages, "SYSTEM_PATH", str(directory))
    monkeypatch.setattr(packages, "ROOT", tmp_path)

    def make(name, output):
        path = directory / name
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("there", "openmpi", "mpich"),
    [
        # Debian's own name first, then any name by the text of its version
        ({"mpirun": OPENMPI_5, "mpirun.openmpi": DEBIANS_OPENMPI_4}, "mpirun.openmpi", None),
        ({"mpiexec": MPICH_4, "mpiexec.hydra": MPICH_4}, None, "mpiexec.hydra"),
        ({"mpirun": OPENMPI_5, "mpiexec": MPICH_4}, "mpirun", "mpiexec"),
        ({"mpirun": MPICH_4, "mpiexec": OPENMPI_5}, None, None),
    ],
)
def test_a_launcher_is_found_by_its_name_and_the_text_of_its_version(commands, tmp_path, there, openmpi, mpich):
    for name, text in there.items():
        commands(name, text)
    found = [packages.find_optional(package) for package in ("openmpi-bin", "mpich")]
    assert found == [name and str(tmp_path / "bin" / name) for name in (openmpi, mpich)]


@pytest.mark.parametrize("permitted", [True, False])
def test_what_is_missing_is_installed_if_that_is_permitted_else_named(commands, monkeypatch, tmp_path, permitted):
    asked = []
    monkeypatch.setattr(packages, "apt_install", lambda _layout, _prefix, wanted: asked.append(wanted))
    monkeypatch.setattr(packages, "privilege", lambda: [] if permitted else None)
    commands("mpirun", OPENMPI_5)
    wanted = [*packages.OPTIONAL_PACKAGES, *packages.OPTIONAL_FILES]
    wanted.remove("openmpi-bin")
    answer = packages.install_optional(Layout(tmp_path))
    assert (answer, asked) == (None, [wanted]) if permitted else f"apt-get install {' '.join(wanted)}" in answer


APT = """#!/bin/sh
cd "${0%/*}/.." && echo "$DEBIAN_FRONTEND $*" >>apt.log
! tail -n 1 apt.log | grep -qe "$(cat failing 2>/dev/null || echo none)"
"""


@pytest.fixture
def apt(commands, monkeypatch, tmp_path):
    """The Layout of a testbed, and the lines of an apt-get; the file `failing` has the command that fails."""
    commands("apt-get", "")
    (tmp_path / "bin" / "apt-get").write_text(APT)
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(packages, "privilege", lambda: [])
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    layout = Layout(tmp_path / "testbed")
    layout.claim()
    return layout, lambda: (tmp_path / "apt.log").read_text().splitlines()


UPDATE, INSTALL = "noninteractive -q -y update", "noninteractive -q -y install --no-install-recommends strace"


@pytest.mark.parametrize(
    ("failing", "advice"),
    [
        ("-y update", "Check that the package archive is reachable"),
        ("install", "Install them manually"),
    ],
)
def test_a_failure_is_reported_and_the_lists_of_packages_are_updated_again(apt, tmp_path, failing, advice):
    layout, lines = apt
    (tmp_path / "failing").write_text(failing)
    assert advice in packages.try_install(layout, ["strace"])
    for name in ("failing", "apt.log"):
        (tmp_path / name).unlink()
    for _ in range(2):  # a minute later, the lists are current
        assert packages.try_install(layout, ["strace"]) is None
    assert lines() == [UPDATE, INSTALL, INSTALL]

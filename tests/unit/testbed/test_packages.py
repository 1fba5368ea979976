"""The distribution's packages: found, or installed if that is permitted."""

import pytest

from testbed import packages
from testbed.layout import Layout
from testbed.packages import find_optional, install_cluster, install_optional

OPENMPI_5 = "mpirun (Open MPI) 5.0.7\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
DEBIANS_OPENMPI_4 = "mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
WANTED = [*packages.OPTIONAL_PACKAGES, *packages.OPTIONAL_FILES]
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


@pytest.fixture
def requests(monkeypatch):
    """The lists of packages that apt is asked to install."""
    asked = []
    monkeypatch.setattr(packages, "apt_install", lambda _layout, _prefix, wanted: asked.append(wanted))
    return asked


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
    found = [find_optional(package) for package in ("openmpi-bin", "mpich")]
    assert found == [name and str(tmp_path / "bin" / name) for name in (openmpi, mpich)]


def test_missing_packages_are_installed_if_that_is_permitted(commands, requests, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "privilege", lambda: [])
    commands("mpirun", OPENMPI_5)
    assert install_optional(Layout(tmp_path)) is None
    assert requests == [[package for package in WANTED if package != "openmpi-bin"]]


def test_packages_that_apptainer_misses_are_installed_with_others(commands, requests, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "privilege", lambda: [])
    monkeypatch.setattr(packages, "find_lmod", lambda: tmp_path)
    install_cluster(Layout(tmp_path))
    assert "gocryptfs" in requests[0]
    for command in (*packages.CLUSTER_PACKAGES, *packages.CONTAINER_PACKAGES):
        commands(command, "")
    install_cluster(Layout(tmp_path))  # no apt, which may have no network, for that alone
    assert len(requests) == 1


def test_nothing_is_installed_if_nothing_is_missing_or_without_privilege(commands, requests, monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "privilege", lambda: None)
    assert f"apt-get install {' '.join(WANTED)}" in install_optional(Layout(tmp_path))
    for package, ((name, *_), mark) in packages.OPTIONAL_PACKAGES.items():
        commands(name, f"{package} {mark}\n")
    for pattern in packages.OPTIONAL_FILES.values():
        path = tmp_path / pattern.replace("*", "x86_64-linux-gnu")
        path.parent.mkdir(parents=True)
        path.touch()
    assert install_optional(Layout(tmp_path)) is None
    assert requests == []


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


def test_apt_gets_the_packages_without_what_they_recommend(apt, tmp_path):
    layout, lines = apt
    for _ in range(2):  # a minute later, the lists are current
        assert packages.try_install(layout, ["strace"]) is None
    assert lines() == [UPDATE, INSTALL, INSTALL]
    assert not (tmp_path / "policy-rc.d").exists()


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
    assert packages.try_install(layout, ["strace"]) is None
    assert lines() == [UPDATE, INSTALL]

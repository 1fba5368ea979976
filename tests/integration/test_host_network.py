"""The host's libraries of the fast network in an image that lacks them: Debian's libfabric, and a library made here."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from meeting import MEET
from recorded_environment import recorded

from testbed.module_systems import MODULEFILES, snapshot

pytestmark = pytest.mark.testbed

#: Prints what a rank finds by the names that a plugin of NCCL loads, and how many ranks have met.
PROBE = f"""{MEET}
import ctypes
version = ctypes.CDLL('libfabric.so.1').fi_version()
place = next(line.split()[-1] for line in open('/proc/self/maps') if 'libfabric' in line)
print(socket.gethostname(), f'{{version >> 16}}.{{version & 0xffff}}', place, found)
"""

#: What Debian's libfabric needs of the host.
NEEDED = "rdmacm efa ibverbs psm_infinipath infinipath psm2 nl-3 nl-route-3 numa atomic"


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A directory with a libcxi.so.1."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it makes the library")
    place = tmp_path_factory.mktemp("host")
    (place / "code.c").write_text("int cxil_version(void) { return 4; }")
    command = "gcc -shared -fPIC -Wl,-soname,libcxi.so.1 -o libcxi.so.1 code.c"
    subprocess.run(command.split(), cwd=place, check=True)
    return place


@pytest.fixture
def listed(testbed, container, tmp_path, monkeypatch):
    """A function that lists files for the installed image, as at its installation."""
    easyblocks = MODULEFILES.parent / "easyblocks"
    monkeypatch.syspath_prepend(str(easyblocks))
    from easybuild.easyblocks import generic

    monkeypatch.setattr(generic, "__path__", [str(easyblocks / "generic"), *generic.__path__])
    from pytorch_install import host_network  # found by the lines before
    from pytorch_install.runtime import in_image

    def run(words, variables, **_):  # EasyBuild's is not set up
        command = ["env", *(f"{name}={value}" for name, value in variables.items() if value), *words]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return SimpleNamespace(output=subprocess.run(command, text=True, check=False, **both).stdout)

    monkeypatch.setattr(host_network, "run_command", run)
    root = testbed.layout.easybuild / "software" / container
    record = root / "provenance" / "host-network"
    before = record.read_text()
    image = str(next(root.glob("*.sif")))
    python = [*in_image(str(testbed.layout.bin / "apptainer"), image, "true", "--cleanenv"), "python3"]
    yield lambda files: record.write_text(
        "\n".join([files, *(f"1 {line}" for line in host_network.lines_of("1", files.split(), python))]) + "\n"
    )
    record.write_text(before)


@pytest.fixture(scope="module")
def libfabric():
    """The files of Debian's libfabric, and its version."""
    real = next(Path("/usr/lib").glob("*-linux-gnu/libfabric.so.1"), None)
    if real is None:
        pytest.skip("Debian's libfabric, which openmpi-bin brings, is not installed")
    version = ctypes.CDLL(real).fi_version()
    files = [real, *(path for name in NEEDED.split() for path in real.parent.glob(f"lib{name}.so.*"))]
    return " ".join(map(str, files)), f"{version >> 16}.{version & 0xFFFF}"


def test_ranks_on_two_nodes_find_the_hosts_libraries_in_the_image(testbed, container, libfabric, listed, work):
    (work / "probe.py").write_text(PROBE)
    files, version = libfabric
    listed(files)
    output = testbed.run(
        f"""export PYTORCH_HOST_NETWORK=1 PYTORCH_HOST_NETWORK_FILES="{files}"
module load {container}
srun -N2 -w nid001001,nid001002 --ntasks-per-node=1 singularity exec $SIF conda-python-distributed -u probe.py""",
        cwd=work,
    )
    ranks = sorted(line.split() for line in output.splitlines() if line)
    assert [rank[0] for rank in ranks] == ["nid001001", "nid001002"]
    assert {tuple(rank[1:]) for rank in ranks} == {(version, "/.singularity.d/libs/libfabric.so.1", "2")}


@pytest.fixture
def installation(tmp_path, libraries):
    """The directory of a container module, which is installed for one library."""
    record = tmp_path / "installation" / "provenance" / "host-network"
    record.parent.mkdir(parents=True)
    library = f"{libraries}/libcxi.so.1"
    record.write_text(f"{library}\n1 {library}\nreplace {library}\n")
    return tmp_path / "installation"


@pytest.mark.parametrize("own", ["", "SINGULARITY_CONTAINLIBS=/a,/b", "APPTAINER_CONTAINLIBS={0}/libcxi.so.1,/a"])
def test_both_lists_have_the_libraries_and_the_users_and_unloading_restores_them(
    modules, installation, libraries, own, tmp_path
):
    load = "module load cluster/local; echo $SINGULARITY_CONTAINLIBS $APPTAINER_CONTAINLIBS\n"
    script, before, after = recorded(
        tmp_path,
        f"""export CONTAINERROOT={installation} PYTORCH_HOST_NETWORK=1
export PYTORCH_HOST_NETWORK_FILES={libraries}/libcxi.so.1 {own.format(libraries)}""",
        f"{load}{load}unset PYTORCH_HOST_NETWORK; module unload cluster/local; export PYTORCH_HOST_NETWORK=1",
    )
    output = modules.run(script)
    once, twice = output.replace(str(libraries), "").splitlines()
    users = {"": [], "S": ["/a", "/b"], "A": ["/a"]}[own[:1]]
    assert [sorted(entries.split(",")) for entries in once.split()] == [sorted(["/libcxi.so.1", *users])] * 2
    assert once == twice
    assert snapshot(after) == snapshot(before)


def test_show_lists_what_is_bound_and_without_the_variable_nothing_is(modules, installation, libraries):
    files = f"export CONTAINERROOT={installation} PYTORCH_HOST_NETWORK_FILES={libraries}/libcxi.so.1"
    for value, is_shown in [("1", True), ("replace", True), ("0", False), ("", False)]:
        shown = modules.run_unchecked(f"{files} PYTORCH_HOST_NETWORK={value}; module show cluster/local").stderr
        assert ("CONTAINLIBS" in shown and "libcxi.so.1" in shown) == is_shown, shown
        assert "ERROR" not in shown


def test_a_list_in_the_profile_is_bound_only_if_the_variable_is_set(modules, installation):
    for value, said in [("1", "the module is installed for PYTORCH_HOST_NETWORK_FILES="), ("0", "")]:
        result = modules.run_unchecked(
            f"export CONTAINERROOT={installation} PYTORCH_HOST_NETWORK={value}\nmodule load cluster/perlmutter"
        )
        assert result.returncode == 0
        assert said in result.stderr and (result.stderr.count("PyTorch: host network: ") == bool(said)), result.stderr

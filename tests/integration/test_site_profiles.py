"""A site's own cluster profiles, copied from ours, under Lmod and Environment Modules."""

import re
import shutil
from pathlib import Path

import pytest
from recorded_environment import recorded

from testbed.module_systems import MODULEFILES, snapshot

pytestmark = pytest.mark.testbed

#: A profile that a site copied before the procedure `policies_of_every_cluster` existed.
EARLIER_PROFILE = """#%Module
# Cluster profile for our machine.

module-whatis "Cluster profile: our machine"

conflict cluster
source [file join [file dirname $ModulesCurrentModulefile] .policy.tcl]

policy SLURM_KILL_BAD_EXIT 0
policy PYTORCH_DISTRIBUTED_RES_OPTIONS "timeout:2 attempts:2"
"""


@pytest.fixture
def use(modules, tmp_path):
    """A function that writes a site's profile, loads it twice and unloads it; returns what `show` prints between."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)

    def run(name, text, show, own=""):
        (directory / name).write_text(text)
        load = f"module load cluster/{name}"
        script, before, after = recorded(tmp_path, own, f"{load}; {load}; echo {show}; module unload cluster/{name}")
        output = modules.run(script, tmp_path, MODULEFILES)
        assert snapshot(after) == snapshot(before)
        return output

    return run


def profile(name):
    """The text of one of our profiles."""
    return (MODULEFILES / "cluster" / name).read_text()


def test_a_copy_under_another_name_in_a_sites_own_directory_works(use):
    text = f"{profile('infiniband')}policy NCCL_IB_HCA =mlx5_0,mlx5_1\n"
    assert use("ours", text, "$NCCL_IB_HCA $PYTORCH_MULTI_NODE_NCCL_NET") == "=mlx5_0,mlx5_1 IB\n"


SHOW = "$SLURM_KILL_BAD_EXIT $PYTORCH_DISTRIBUTED_RES_OPTIONS"


def test_a_sites_profile_of_an_earlier_version_on_the_path_before_ours_wins(use):
    assert use("local", EARLIER_PROFILE, SHOW) == "0 timeout:2 attempts:2\n"


@pytest.mark.parametrize(("own", "expected"), [("", "0"), ("export SLURM_KILL_BAD_EXIT=2", "2")])
def test_a_sites_line_overrides_what_every_profile_sets_but_not_the_users_export(use, own, expected):
    text = f"{profile('local')}policy SLURM_KILL_BAD_EXIT 0\n"
    assert use("ours", text, SHOW, own) == f"{expected} timeout:1 attempts:1\n"


LIBRARY = """import ctypes, os, socket
ctypes.CDLL("libmunge.so.2")
place = next(line.split()[-1] for line in open("/proc/self/maps") if "libmunge" in line)
os.write(1, f"{socket.gethostname()} {place}\\n".encode())  # in one write: srun mixes the partial writes of ranks
"""


def test_ranks_in_an_image_find_the_hosts_libraries_that_a_sites_profile_names(testbed, container, work):
    """As docs/clusters.md has it for Slingshot; munge, which Slurm's hosts have, is in no image."""
    library = next(iter(Path("/usr/lib").glob("*-linux-gnu/libmunge.so.2")), None)
    if not library:
        pytest.skip("no libmunge.so.2 in a directory of Debian")
    (work / "cluster").mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", work / "cluster")
    page = (MODULEFILES.parent / "docs" / "clusters.md").read_text()
    lines = re.findall(r"^    (policy APPTAINER\w+) (.*)$", page, re.MULTILINE)
    policies = [f"{name} {library if name.endswith('LIBS') else value}\n" for name, value in lines]
    assert len(policies) == 2
    (work / "cluster" / "local").write_text(profile("local") + "".join(policies))
    (work / "probe.py").write_text(LIBRARY)
    output = testbed.run(
        f"""module use {work}
module load {container}
srun -N2 -w nid001001,nid001002 --ntasks-per-node=1 singularity exec $SIF conda-python-distributed -u probe.py""",
        cwd=work,
    )
    assert sorted(output.splitlines()) == [f"nid00100{number} /.singularity.d/libs/libmunge.so.2" for number in (1, 2)]

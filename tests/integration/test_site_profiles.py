"""A site's own cluster profiles, copied from ours, under Lmod and Environment Modules."""

import shutil

import pytest

from testbed.module_systems import MODULEFILES, SNAPSHOT, snapshot

pytestmark = pytest.mark.testbed


def test_a_copy_under_another_name_in_a_sites_own_directory_works(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name, copy in ((".policy.tcl", ".policy.tcl"), ("infiniband", "ours")):
        shutil.copy(MODULEFILES / "cluster" / name, directory / copy)
    with (directory / "ours").open("a") as profile:
        profile.write("policy NCCL_IB_HCA =mlx5_0,mlx5_1\n")
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{SNAPSHOT.format(before)}
module load cluster/ours
echo $NCCL_IB_HCA $PYTORCH_MULTI_NODE_NCCL_NET
module unload cluster/ours
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == "=mlx5_0,mlx5_1 IB\n"
    assert snapshot(after) == snapshot(before)


def test_a_copy_without_the_file_beside_it_reports_which_one_is_missing(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / "local", directory / "ours")
    result = modules.run_unchecked("module load cluster/ours", tmp_path)
    assert result.returncode
    assert f"{directory}/.policy.tcl" in "".join(result.stderr.split())


#: A profile that a site copied before the procedure `policies_of_every_cluster` existed.
EARLIER_PROFILE = """#%Module
# Cluster profile for our machine.

module-whatis "Cluster profile: our machine"

conflict cluster
source [file join [file dirname $ModulesCurrentModulefile] .policy.tcl]

policy SLURM_KILL_BAD_EXIT 0
policy PYTORCH_DISTRIBUTED_RES_OPTIONS "timeout:2 attempts:2"
"""


def test_a_sites_profile_of_an_earlier_version_on_the_path_before_ours_wins(modules, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)
    (directory / "local").write_text(EARLIER_PROFILE)
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{SNAPSHOT.format(before)}
module load cluster/local
echo $SLURM_KILL_BAD_EXIT $PYTORCH_DISTRIBUTED_RES_OPTIONS
module unload cluster/local
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == "0 timeout:2 attempts:2\n"
    assert snapshot(after) == snapshot(before)


@pytest.mark.parametrize(("own", "expected"), [("", "0"), ("export SLURM_KILL_BAD_EXIT=2", "2")])
def test_a_sites_line_overrides_what_every_profile_sets_but_not_the_users_export(modules, tmp_path, own, expected):
    directory = tmp_path / "cluster"
    directory.mkdir()
    shutil.copy(MODULEFILES / "cluster" / ".policy.tcl", directory)
    text = (MODULEFILES / "cluster" / "local").read_text()
    (directory / "ours").write_text(text + "policy SLURM_KILL_BAD_EXIT 0\n")
    before, after = tmp_path / "before", tmp_path / "after"
    output = modules.run(
        f"""{own}
{SNAPSHOT.format(before)}
module load cluster/ours
module load cluster/ours
echo $SLURM_KILL_BAD_EXIT $PYTORCH_DISTRIBUTED_RES_OPTIONS
module unload cluster/ours
{SNAPSHOT.format(after)}""",
        tmp_path,
        MODULEFILES,
    )
    assert output == f"{expected} timeout:1 attempts:1\n"
    assert snapshot(after) == snapshot(before)

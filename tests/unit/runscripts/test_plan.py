"""The plan of a rank, one value made without side effects, and the variables that it starts Python with."""

import os
import subprocess
import sys

import pytest
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.plan import conditional, make_plan
from pytorch_launch.topology import read_node
from pytorch_launch.world import AGENT
from variables import BATCH_SCRIPT, STEP, changed, variables


def at(root, allowed=frozenset(range(8)), **changes):
    """A process on the node below `root`."""
    node = read_node(root, allowed=set(allowed))
    return node._replace(**{"host": "vm", "pid": 4711, "launcher": 4710, "uid": 1000, **changes})


@pytest.fixture
def env(first, tmp_path):
    """Rank 0 of the step, with room for caches."""
    (tmp_path / "scratch").mkdir()
    return {**first, "TMPDIR": str(tmp_path / "scratch")}


def test_the_mask_of_mpirun_is_found_above_a_rank_also_through_other_programs(runscripts, tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.symlink_to("/bin/bash")
    code = f"import sys; sys.path.insert(0, {str(runscripts)!r})\nfrom pytorch_launch.topology import read_node\n"
    code += "print(sorted(read_node(programs=['mpirun']).launcher_cpus or ()))"
    (tmp_path / "rank.py").write_text(code)
    rank = f"taskset -c 0 bash -c '{sys.executable} {tmp_path}/rank.py; true'; true"
    for program, cpus in ((str(mpirun), sorted(os.sched_getaffinity(0))), ("bash", [])):
        assert subprocess.check_output([program, "-c", rank], text=True) == f"{cpus}\n"


TORCHRUN = variables("TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=0")


def changes_of(env, laptop, **more):
    """What a rank on a laptop gets besides its caches."""
    changes = make_plan({**env, **more}, at(laptop)).changes
    return {name: value for name, value in changes.items() if "/" not in (value or "")}


def test_the_users_threads_stay(step, laptop):
    assert "OMP_NUM_THREADS" not in changes_of(step, laptop, OMP_NUM_THREADS="3")


@pytest.mark.parametrize(
    ("env", "changes"),
    [
        ({}, {"OMP_NUM_THREADS": "4"}),
        ({"OMP_NUM_THREADS": "1"}, {}),
        # of our own agent
        ({"OMP_NUM_THREADS": "8", f"{AGENT}THREADS": "8"}, {"OMP_NUM_THREADS": "4", f"{AGENT}THREADS": None}),
        ({"OMP_NUM_THREADS": "2", f"{AGENT}THREADS": "8"}, {f"{AGENT}THREADS": None}),  # the user's, inside the agent
    ],
)
def test_a_worker_of_torchrun_keeps_torchruns_world_and_the_users_threads(laptop, env, changes):
    assert changes_of(TORCHRUN, laptop, **env) == changes


@pytest.mark.parametrize(("cpus", "bind", "threads"), [("4", {0, 4}, 1), ("8", None, 2)])
def test_the_cores_that_torchruns_numa_binding_leaves_a_worker_are_not_cut_again(laptop, cpus, bind, threads):
    two = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", f"{AGENT}CPUS": cpus}
    plan = make_plan({**TORCHRUN, **two}, at(laptop, allowed={0, 1, 4, 5}))
    assert (plan.world.local_size, plan.placement.bind, plan.placement.threads) == (2, bind, threads)
    assert plan.changes[f"{AGENT}CPUS"] is None


SETTINGS = "PYTORCH_MULTI_NODE_NCCL_NET=OFI PYTORCH_ONE_NODE_NCCL_NET=Socket PYTORCH_DISTRIBUTED_RES_OPTIONS=timeout:1"
ON_ONE_NODE = "SLURM_STEP_NODELIST=nid001003 SLURM_STEP_TASKS_PER_NODE=4 SLURM_NODEID=0 SLURM_LOCALID=3"
ALONE = "SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0"


@pytest.mark.parametrize(
    ("base", "changes", "wanted"),
    [
        (STEP, "", "NCCL_NET=OFI RES_OPTIONS=timeout:1"),
        (STEP, ON_ONE_NODE, "NCCL_NET=Socket RES_OPTIONS=timeout:1"),
        (STEP, f"{ON_ONE_NODE} {ALONE}", "NCCL_NET=Socket"),
        ({}, "", "NCCL_NET=Socket"),
        ({}, "NCCL_NET=IB", ""),
        ({}, "NCCL_NET=", ""),
        # a batch script in an allocation of several nodes may start srun
        (BATCH_SCRIPT, "SLURM_JOB_NUM_NODES=3", ""),
    ],
)
def test_what_a_module_wants_on_one_or_several_nodes_or_in_a_world_is_set_there_alone(base, changes, wanted):
    env = changed(base, f"{SETTINGS} {changes}")
    assert conditional(env, discover(env, "vm")) == variables(wanted)


@pytest.mark.parametrize("name", ["A;touch x;B", "A B", "1A", ""])
def test_what_is_no_name_of_a_shells_variable_is_left_out(step, name):
    env = {**step, f"PYTORCH_DISTRIBUTED_{name}": "1", f"PYTORCH_MULTI_NODE_{name}": "x"}
    assert conditional(env, discover(env, "vm")) == {}

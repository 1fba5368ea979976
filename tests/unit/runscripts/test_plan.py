"""The plan of a rank: one value, made without side effects."""

import os
import subprocess
import sys

import pytest
from pytorch_launch.claim import is_claimed
from pytorch_launch.plan import Plan, make_plan
from pytorch_launch.topology import Node

CPUS = {*range(8)}


def at(root, **changes):
    """A process on the node below `root`."""
    return Node(root, **{"host": "vm", "pid": 4711, "launcher": 4710, "allowed": CPUS, "uid": 1000, **changes})


@pytest.fixture
def env(first, tmp_path):
    """Rank 0 of the step, with room for caches."""
    (tmp_path / "scratch").mkdir()
    return {**first, "TMPDIR": str(tmp_path / "scratch")}


def test_a_plan_changes_nothing_on_its_node(env, laptop, tmp_path):
    before = os.sched_getaffinity(0)
    plan = make_plan(env, at(laptop))
    assert plan.bind == plan.placement.bind == {0, 1, 4, 5}
    assert (plan.claim, plan.place["MASTER_PORT"], plan.launch) == (True, str(10000 + 7 * 61), "7.0")
    assert plan.caches == f"{tmp_path}/scratch/pytorch-1000/7-nid001002"
    assert os.sched_getaffinity(0) == before
    assert not is_claimed(10000 + 7 * 61)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_plan_follows_from_environment_and_facts_alone_and_is_immutable(env, laptop):
    plan = make_plan(env, at(laptop))
    assert make_plan(dict(env), at(laptop)).changes == plan.changes
    assert make_plan(env, at(laptop, uid=7)).caches != plan.caches
    with pytest.raises(AttributeError, match="Plan is immutable"):
        plan.bind = None
    assert (plan.replace(bind=None).bind, plan.bind) == (None, {0, 1, 4, 5})
    with pytest.raises(AttributeError):
        plan.replace(bound=None)
    with pytest.raises(TypeError, match="Plan needs warnings"):
        Plan(**{name: None for name in Plan.__slots__ if name != "warnings"})


def test_ranks_on_other_nodes_than_that_of_rank_0_make_no_claim(env, laptop):
    assert make_plan({**env, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}, at(laptop)).claim
    assert not make_plan({**env, "SLURM_PROCID": "2", "SLURM_NODEID": "1"}, at(laptop)).claim
    assert not make_plan({}, at(laptop)).claim


def test_rank_1_reports_that_the_number_of_its_only_gpu_is_not_local_rank(env, perlmutter):
    env.update(SLURM_PROCID="1", SLURM_LOCALID="1")
    own = {"CUDA_VISIBLE_DEVICES": "1"}
    for more, virtual, count in ((own, False, 1), (own, True, 0), ({}, False, 0)):
        made = make_plan({**env, **more}, at(perlmutter), virtual=virtual)
        assert sum("its device is cuda:0 and not cuda:LOCAL_RANK" in str(each) for each in made.warnings) == count


def test_the_facts_are_those_of_this_process():
    found = Node()
    assert (found.pid, found.uid, found.allowed) == (os.getpid(), os.geteuid(), os.sched_getaffinity(0))
    assert (found.host, found.root) == (os.uname().nodename, "")


def test_the_mask_of_mpirun_is_found_above_a_rank_also_through_other_programs(runscripts, tmp_path):
    mpirun = tmp_path / "mpirun"
    mpirun.symlink_to("/bin/bash")
    code = f"import sys; sys.path.insert(0, {str(runscripts)!r})\nfrom pytorch_launch.topology import Node\n"
    code += "print(sorted(Node().launcher_cpus or ()))"
    (tmp_path / "rank.py").write_text(code)
    rank = f"taskset -c 0 bash -c '{sys.executable} {tmp_path}/rank.py; true'; true"
    for program, cpus in ((str(mpirun), sorted(os.sched_getaffinity(0))), ("bash", [])):
        assert subprocess.check_output([program, "-c", rank], text=True) == f"{cpus}\n"

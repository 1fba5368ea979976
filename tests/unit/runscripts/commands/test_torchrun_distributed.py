"""torchrun-distributed: the options that it passes to torchrun, and what it refuses."""

import json
import os
from pathlib import Path

import pytest
from command_environment import CACHE_VARIABLES, PATH, SHOW_ENVIRONMENT
from variables import RANK_0, variables


def test_torchrun_gets_the_nodes_the_rendezvous_and_our_worker(run, agent, runscripts):
    arguments, env = json.loads(run("torchrun-distributed", "--max-restarts=3", "train.py", "--lr", "1", env=agent))
    endpoint = f"nid001002:{10000 + 7 * 61}"
    assert " ".join(arguments) == (
        f"-m torch.distributed.run --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint={endpoint} "
        "--rdzv-id=7.0 --rdzv-conf=is_host=false --local-addr=nid001003 --max-restarts=3 train.py --lr 1"
    )
    assert Path(env["PYTHON_EXEC"]).samefile(runscripts / "conda-python-distributed")
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & set(env)
    assert env["PYTORCH_LAUNCH_AGENT_CPUS"] == str(len(os.sched_getaffinity(0)))
    assert not CACHE_VARIABLES & set(env)  # each worker makes its own
    arguments, _ = json.loads(run("torchrun-distributed", "train.py", env={**agent, **RANK_0}))
    assert "--rdzv-conf=is_host=true" in arguments  # on the first node


def test_the_users_rendezvous_and_threads_win_in_torchrun_too(run, agent):
    agent.update(MASTER_ADDR="fd00::2", MASTER_PORT="4000", OMP_NUM_THREADS="3")
    arguments, env = json.loads(run("torchrun-distributed", "train.py", env=agent))
    assert "--rdzv-endpoint=[fd00::2]:4000" in arguments
    assert env["OMP_NUM_THREADS"] == "3"
    assert not {"MASTER_ADDR", "MASTER_PORT", "PYTORCH_LAUNCH_AGENT_THREADS"} & set(env)


def test_several_agents_on_a_node_and_one_inside_torchrun_are_refused(run_unchecked, step, worker):
    remedy = "torchrun starts the ranks of a node. Start one task per node: srun -N2 -n2 torchrun-distributed"
    for env, message in (
        (step, f"has 2 tasks on nid001003, but {remedy}"),
        (worker, "worker of torchrun run none already"),
    ):
        done = run_unchecked("torchrun-distributed", "train.py", env=env)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr


WRONG = ["--standalone", "-r3 --standalone", "--standalone --nproc-per-node=2", "--nproc-per-node 2 --nnodes 1"]


@pytest.mark.parametrize("options", [*WRONG, "--nnodes=3:4", "--master-addr=localhost --nnodes=1"])
def test_options_of_torchrun_for_other_nodes_than_the_tasks_are_refused(run_unchecked, agent, options):
    done = run_unchecked("torchrun-distributed", *options.split(), "train.py", env=agent)
    assert (done.returncode, done.stdout) == (2, "")
    assert "but Slurm step 7.0 has 2 tasks, an agent each. Omit the option" in done.stderr
    assert options.split()[-1].partition("=")[2] in done.stderr
    done = run_unchecked("torchrun-distributed", "train.py", env={**agent, "PET_NNODES": "1"})  # torchrun's variable
    assert "--nnodes=1, but Slurm step 7.0 has 2 tasks" in done.stderr


def test_one_agent_does_not_wait_for_more(run, run_unchecked, agent):
    alone = {name: value for name, value in agent.items() if "SLURM" not in name}
    done = run_unchecked("torchrun-distributed", "--nnodes=2", "train.py", env=alone)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nnodes=2, but single process has 1 task, an agent each" in done.stderr
    for options in ("--standalone", "--nnodes=1:4"):
        assert run("torchrun-distributed", options, "train.py", env=alone)


def test_nodes_that_do_not_know_each_other_meet_where_the_user_says(run, agent):
    env = {name: value for name, value in agent.items() if "SLURM" not in name}
    options = "--nnodes=2 --rdzv-endpoint=first:1"
    arguments, _ = json.loads(run("torchrun-distributed", *options.split(), "train.py", env=env))
    ours = "-m torch.distributed.run --nproc-per-node=1 --rdzv-backend=c10d"
    assert " ".join(arguments) == f"{ours} {options} train.py"


@pytest.mark.parametrize("options", ["--nproc-per-node=x", "--nproc-per-node -2", "--nnodes=two"])
def test_a_value_that_torchrun_cannot_read_is_one_line(run_unchecked, agent, options):
    done = run_unchecked("torchrun-distributed", *options.split(), "train.py", env=agent)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"torchrun-distributed: {options.split()[0].partition('=')[0]}=")


def test_the_agent_starts_without_the_binding_of_openmp_and_its_workers_with_it(run_unchecked, agent, worker):
    """libgomp binds the agent as soon as it imports torch, and the workers inherit its one core."""
    binding = {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    done = run_unchecked("torchrun-distributed", "train.py", env={**agent, **RANK_0, **binding})
    env = json.loads(done.stdout)[1]
    assert not binding.keys() & env.keys()
    if len(os.sched_getaffinity(0)) > 1:
        assert done.stderr.startswith("torchrun-distributed: OMP_PROC_BIND=true OMP_PLACES=cores binds each rank, ")
    done = run_unchecked("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env={**env, **worker, "PATH": PATH})
    seen = json.loads(done.stdout)
    assert binding.items() <= seen.items()
    assert not [name for name in seen if name.startswith("PYTORCH_LAUNCH_AGENT_")]
    assert done.stderr == ""
    # torchrun alone
    done = run_unchecked("torchrun", "--nproc-per-node=2", "train.py", env={**agent, "OMP_PROC_BIND": "true"})
    assert "OMP_PROC_BIND" not in json.loads(done.stdout)[1]
    assert done.stderr.startswith("torchrun: OMP_PROC_BIND=true would bind torchrun and all of its workers to one core")


@pytest.mark.parametrize(
    ("options", "changes", "is_warned"),
    [
        ([], {}, True),
        (["--nproc-per-node", "2"], {}, True),
        ([], variables("SLURM_PROCID=1 SLURM_NODEID=1 SLURMD_NODENAME=nid001003"), False),
        (["--standalone"], {}, False),
        (["--nnodes=1:2", "--rdzv-endpoint=nid001002:1"], {}, False),
        ([], variables("SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=nid001002"), False),
    ],
)
def test_torchrun_alone_in_several_tasks_names_its_worlds(run_unchecked, agent, options, changes, is_warned):
    done = run_unchecked("torchrun", *options, "train.py", env={**agent, **RANK_0, **changes})
    assert json.loads(done.stdout)[0][-1] == "train.py"
    warning = "torchrun: each of the 2 tasks of Slurm step 7.0 starts a world of its own. For one world use "
    assert done.stderr.startswith(warning) == is_warned
    assert is_warned or not done.stderr

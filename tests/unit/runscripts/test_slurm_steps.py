"""Variables of another step or launch that a process inherited.

Heterogeneous steps, and jobs that ranks submit: tests/integration/test_worlds_of_steps.py.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytorch_launch import LaunchError
from pytorch_launch.launchers.discovery import discover
from pytorch_launch.launchers.slurm import first_host
from variables import changed, variables


@pytest.fixture(autouse=True)
def in_container(monkeypatch):
    """The processes of these steps are not children of slurmstepd."""
    monkeypatch.setattr("pytorch_launch.launchers.inherited.sees_processes_of_host", lambda: False)


#: Rank 2 of `salloc -w nid001003 -n1 : -w nid[001001-001002] -N2 -n3 srun --het-group=0,1`, Slurm 22.05: the lists of
#: the step are sorted, ranks and SLURM_NODEID follow the components.
HETEROGENEOUS = variables(
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=4 SLURM_HET_SIZE=2 SLURM_JOB_NODELIST_HET_GROUP_0=nid001003 "
    "SLURM_JOB_NODELIST_HET_GROUP_1=nid[001001-001002] SLURM_STEP_NODELIST=nid[001001-001003] SLURM_STEP_NUM_NODES=3 "
    "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2,1(x2) SLURM_PROCID=2 SLURM_LOCALID=1 SLURM_NODEID=1 "
    "SLURM_GTIDS=1,2 SLURMD_NODENAME=nid001001"
)


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ("", None),
        ("SLURM_NODEID=0 SLURM_PROCID=0 SLURM_GTIDS=0 SLURM_LOCALID=0 SLURMD_NODENAME=nid001003", None),
        ("SLURM_STEP_NODELIST=nid[001001,001003] SLURM_STEP_TASKS_PER_NODE=2(x2)", "nid001003"),
        ("SLURM_STEP_NODELIST=nid001001 SLURM_STEP_TASKS_PER_NODE=2(x2)", "nid001001"),
    ],
)
def test_components_without_a_name_have_a_first_node_on_two_nodes_only(changes, first):
    """As in `srun A : B` in a plain job; all ranks agree."""
    assert discover(changed(HETEROGENEOUS, changes, SLURM_HET_SIZE=""), "vm").first_host == first


@pytest.mark.parametrize(
    "changes",
    [
        "SLURM_NODEID=2",
        "SLURM_JOB_NODELIST_HET_GROUP_0=nid[001001,001003]",  # a node of two components
        "SLURM_JOB_NODELIST_HET_GROUP_1=nid001001",
        "SLURM_JOB_NODELIST_HET_GROUP_0=nid001002 SLURM_NODEID=0",  # and one of none
    ],
)
def test_components_that_do_not_give_the_number_of_a_node_are_an_error(changes):
    with pytest.raises(LaunchError, match="of nid001001 does not follow from the components of the step"):
        discover(changed(HETEROGENEOUS, changes), "vm")


# Variables of another step or job


@pytest.fixture
def submitted(step, batch_script):
    """A batch script of one task that a task of `step` submitted, Slurm 22.05."""
    step.update(SLURM_PROCID="1", SLURM_GTIDS="0,1")
    own = variables("SLURM_JOB_ID=8 SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_TASKS_PER_NODE=1 SLURM_GTIDS=0")
    return {**step, **batch_script, **own, "SLURM_JOB_NODELIST": "nid001001", "SLURM_JOB_NUM_NODES": "1"}


def test_a_batch_script_of_one_task_that_inherited_a_step_is_one_process_and_one_line(submitted):
    world = discover(submitted, "vm")
    assert (world.rank, world.size, world.job, world.step, world.allocation) == (0, 1, 8, None, (1, 1, "srun"))
    assert str(world.problems[0]).startswith(
        "SLURM_STEP_NUM_TASKS=4 is of a launch around this job: starting one process"
    )
    assert first_host(submitted) == "nid001001"
    # with Slurm 26.05 the script's step has a number
    more = {"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
    world = discover({**submitted, **more, "SLURM_STEP_ID": "-5"}, "vm")
    assert (world.size, world.step, world.allocation) == (1, None, (4, 1, "srun"))
    # several tasks, and its process is hidden
    with pytest.raises(LaunchError, match="SLURM_NTASKS=2 is not SLURM_STEP_NUM_TASKS=4"):
        discover({**submitted, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "1(x2)"}, "vm")


@pytest.fixture
def task():
    """A function that starts a process as the first one of a Slurm task, under a title; its number."""
    processes = []

    def start(env, title="slurmstepd: [8.0]"):
        code = (
            "import os, subprocess, sys\n"
            "child = ['/bin/sh', '-c', 'exec env SLURM_TASK_PID=$$ sh -c \"echo $$; exec sleep 600\"']\n"
            "with subprocess.Popen(child) as process: sys.exit(process.wait())"
        )
        # `python - <title>` has another name than slurmstepd, whose title is all of its command line
        process = subprocess.Popen(
            [title, "-c", code], executable=sys.executable, env=env, stdout=subprocess.PIPE, text=True
        )
        processes.append((process, int(process.stdout.readline())))
        kernel = Path(f"/proc/{processes[-1][1]}")
        while (kernel / "comm").read_text() != "sleep\n" or not (kernel / "environ").read_bytes():
            time.sleep(0.01)  # during exec, the kernel has no variables to show
        return {**env, "SLURM_TASK_PID": str(processes[-1][1])}

    yield start
    for process, child in processes:
        os.kill(child, 9)
        process.communicate(timeout=300)


SIGNS = variables("TORCHELASTIC_RUN_ID=none OMPI_COMM_WORLD_RANK=1 MPI_LOCALRANKID=1 FLUX_TASK_RANK=1 PALS_RANKID=1")


@pytest.mark.parametrize("sign", SIGNS)
def test_variables_of_a_launch_around_the_job_are_an_error_in_its_steps(task, step, sign):
    env = task({**step, sign: SIGNS[sign], "RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "far"})
    if sign == "PALS_RANKID":  # srun's own variables come before it
        env.pop("RANK"), env.pop("WORLD_SIZE")
        assert discover(env, "vm").source == "Slurm step 7.0"
        return
    with pytest.raises(LaunchError, match=f"{sign}={SIGNS[sign]} is of another launch than Slurm step 7.0. Submit"):
        discover(env, "vm")


@pytest.mark.parametrize("sign", [*SIGNS, "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"])
def test_variables_of_a_launch_around_the_job_do_not_hold_for_its_batch_script(task, batch_script, sign):
    inherited = variables("RANK=1 WORLD_SIZE=2 MASTER_ADDR=far MASTER_PORT=1 ROLE_RANK=1")
    inherited[sign] = SIGNS.get(sign, "1")
    world = discover(task({**batch_script, **inherited}), "vm")
    assert world.size == 1
    assert set(inherited) <= set(world.strays)
    fault = f"{sign}={inherited[sign]} is of a launch around this job: starting one process"
    assert str(world.problems[0]).startswith(fault)


OF_OPEN_MPI = variables(
    "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2"
)
OF_TORCHRUN = variables(
    "TORCHELASTIC_RUN_ID=none TORCHELASTIC_ERROR_FILE=a RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 "
    "GROUP_RANK=0 MASTER_ADDR=far MASTER_PORT=1"
)


@pytest.mark.parametrize(
    ("job", "daemon"),
    [
        ("PBS_JOBID=7.pbs", "pbs_mom"),
        ("LSB_JOBID=7", "res"),
        ("FLUX_URI=local:///x", "flux-broker-0"),
        ("SLURM_JOB_ID=8", "slurmstepd"),
    ],
)
@pytest.mark.parametrize(
    ("inherited", "program", "of_the_next"),
    [(OF_OPEN_MPI, "mpirun", {}), (OF_TORCHRUN, "python", {"TORCHELASTIC_ERROR_FILE": "b"})],
)
def test_a_job_that_a_rank_submits_is_no_rank_of_its_launch_and_may_start_another(
    task, monkeypatch, job, daemon, inherited, program, of_the_next
):
    """bsub, `flux batch` and `qsub -V` pass the variables of a rank on, as sbatch does."""
    env = task(changed(inherited, job))
    above = [(env["SLURM_TASK_PID"], "bash"), ("1", daemon)]
    if not job.startswith("SLURM"):
        del env["SLURM_TASK_PID"]
    monkeypatch.setattr("pytorch_launch.launchers.inherited.ancestors", lambda: above)
    world = discover(env, "vm")
    assert (world.size, "starting one process" in str(world.problems[0])) == (1, True)
    assert set(inherited) <= set(world.strays)
    # the next launch of its script may have equal numbers, and the same run id
    above.insert(0, ("9", program))
    world = discover({**env, **of_the_next}, "vm")
    assert (world.size, list(world.problems)) == (2, [])


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "PYTORCH_LAUNCH_ID"])
def test_a_launch_of_this_package_is_known_by_the_job_in_its_name(step, batch_script, name):
    with pytest.raises(LaunchError, match=f"{name}=6.0 is of another launch than Slurm step 7.0"):
        discover({**step, name: "6.0", "RANK": "0"}, "vm")
    assert discover({**batch_script, name: "6.0", "RANK": "3"}, "vm").problems
    if name == "PYTORCH_LAUNCH_ID":
        assert discover({**step, name: "7.0"}, "vm").problems == ()
        with pytest.raises(LaunchError, match=r"PYTORCH_LAUNCH_ID=7\.1 is of another launch than Slurm step 7\.0"):
            discover({**step, name: "7.1", "RANK": "3"}, "vm")  # srun --overlap in a rank of step 1


def test_the_ranks_of_a_launcher_inside_a_task_may_be_fewer_than_the_tasks(task, step):
    """mpirun in a shell of `srun --pty`: the task started without the variables of mpirun."""
    env = dict(task({**step, "SLURM_STEP_NUM_TASKS": "8"}), OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
    env.update(OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="2", SLURM_STEP_NUM_NODES="2")
    assert discover(env, "nid001003").size == 2
    with pytest.raises(LaunchError, match="WORLD_SIZE=2, but SLURM_STEP_NUM_TASKS=8"):
        discover({**env, "SLURM_TASK_PID": "1"}, "nid001003")


# Shells


@pytest.mark.parametrize("number", ["4294967290", "-6"])  # up to Slurm 25.11, and after it
def test_a_process_in_the_shell_of_salloc_is_alone_in_its_allocation(step, number):
    """Where salloc starts it as a step of one task on the first node (LaunchParameters=use_interactive_step)."""
    shell = variables(
        f"SLURM_STEP_ID={number} SLURM_STEP_NODELIST=nid001003 SLURM_STEP_NUM_NODES=1 SLURM_PROCID=0 SLURM_LOCALID=0 "
        "SLURM_NODEID=0 SLURM_GTIDS=0 SLURM_PTY_PORT=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 "
        "SLURM_JOB_NUM_NODES=2"
    )
    world = discover({**step, **shell}, "vm")  # SLURM_NTASKS is that of the job, as seen with 22.05
    assert (world.size, world.step, world.allocation) == (1, 4294967290, (4, 2, "srun"))

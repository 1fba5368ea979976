"""Which world a process belongs to, by the variables that its launcher set: a row of a table is a process."""

import os

import pytest
from pytorch_launch import LaunchError
from pytorch_launch.launchers import inherited, is_first_task_of_node
from pytorch_launch.launchers.discovery import discover
from tables import name, table
from variables import BATCH_SCRIPT, MPIRUN, STEP, changed, variables

ENVIRONMENTS = {
    "step": STEP,
    "batch": BATCH_SCRIPT,
    # what torchrun exports to its second worker on the second node
    "torchrun": variables(
        "TORCHELASTIC_RUN_ID=none RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 MASTER_ADDR=node7 "
        "MASTER_PORT=40001"
    ),
    "mpi": MPIRUN,
    # the same with MPICH 4.0.2's mpiexec.hydra; the node's name is that of the first node
    "hydra": variables(
        "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 SLURM_JOB_ID=7 "
        "SLURM_JOB_NODELIST=nid[001001-001002] SLURMD_NODENAME=nid001001 SLURM_STEP_ID=1 "
        "SLURM_STEP_NODELIST=nid[001001-001002] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 "
        "SLURM_LOCALID=0 SLURM_NODEID=1"
    ),
    # PALS in a job of PBS, and Cray's PMI; by their documentation
    "flux": variables(
        "FLUX_JOB_ID=f7 FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=1 MASTER_ADDR=nid001001"
    ),
    "pals": variables("PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PALS_NODEID=1 PALS_APID=6cd8 PBS_JOBID=7.p"),
    # what Cray's PMI adds; it is not a launcher by itself
    "pmi": variables("PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2 PBS_JOBID=7.p"),
}
#: Files that variables name: PBS's lists of hosts, one line for each slot, and the description of a launch by PALS.
FILES = {
    "nodes": "nid001001\nnid001001\nnid001002\nnid001002\n",
    "long": "other.site.org\nnid001002.site.org\n",
    "two": "a\na\nb\n",
    "one": "a\n",
}


def find(directory, names, changes="", host="nid001002"):
    """The World of a process on a host, by the environments `names`, and `changes`: -NAME removes a variable."""
    for file, text in FILES.items():
        (directory / file).write_text(text)
    env = {name: value for each in names.split() for name, value in ENVIRONMENTS[each].items()}
    for word in changes.replace("FILES", str(directory)).split():
        name, is_set, value = word.partition("=")
        env.update({name: value} if is_set else {})
        if not is_set:
            del env[name.lstrip("-")]
    return discover(env, host)


def shape(world):
    return f"{world.rank}/{world.size} {world.local_rank}/{world.local_size} {world.node_rank}"


ALL_HERE = "OMPI_COMM_WORLD_LOCAL_SIZE=4 MPI_LOCALNRANKS=4"

WORLDS = """
names         | changes                                                      | world     | fields
# Slurm
              | SLURM_JOB_ID=7 SLURM_HET_SIZE=2                              | 0/1 0/1 0 | allocation=(1, 2, 'srun')
step          |                                                              | 3/4 1/2 1 | job=7; step=0; source=Slurm step 7.0; node=nid001003
step          |                                                              | 3/4 1/2 1 | first_host=nid001002; exported=False
# the host's name
step          | -SLURMD_NODENAME                                             | 3/4 1/2 1 | node=nid001002
# exports that agree
step          | RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 GROUP_RANK=                 | 3/4 1/2 1 |
# a launch inside a rank
step          | RANK=3 LOCAL_RANK=0 PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK=1      | 3/4 1/2 1 |
step          | PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_RANK=1                       | 3/4 1/2 1 | source=Slurm step 7.0
step          | SLURM_STEP_NODELIST=nid[001-004] SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=0 SLURMD_NODENAME=nid001 | 3/7 0/2 0 |
step          | SLURM_STEP_NODELIST=nid[001-004] SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_STEP_NUM_TASKS=7 SLURM_NTASKS=7 SLURM_LOCALID=0 SLURM_NODEID=3 SLURMD_NODENAME=nid004 | 3/7 0/1 3 |
step          | SLURM_CPUS_PER_TASK=4                                        | 3/4 1/2 1 | node_cpus=8; cpus_per_task=4
step          | -SLURM_CPUS_ON_NODE                                          | 3/4 1/2 1 | node_cpus=None; cpus_per_task=None
# GPUs that Slurm reports, to ranks of mpirun as well
step          | SLURM_GPUS_ON_NODE=4 SLURM_STEP_GPUS=2,3                     | 3/4 1/2 1 | node_gpus=4; step_gpus=[2, 3]
mpi           | SLURM_GPUS_ON_NODE=4 SLURM_STEP_GPUS=gpu                     | 3/4 1/2 1 | node_gpus=4; step_gpus=None
step          | SLURM_CPU_BIND_TYPE=map_cpu: SLURM_CPU_BIND_LIST=3           | 3/4 1/2 1 | masks=[{3}, {3}]
step          | SLURM_CPU_BIND_TYPE=mask_cpu: SLURM_CPU_BIND_LIST=3,0x1      | 3/4 1/2 1 | masks=[{0, 1}, {0}]
step          | SLURM_CPU_BIND_TYPE=mask_cpu: SLURM_CPU_BIND_LIST=0xF0       | 3/4 1/2 1 | masks=[{4, 5, 6, 7}, {4, 5, 6, 7}]
step          | SLURM_CPU_BIND_TYPE=map_cpu: SLURM_CPU_BIND_LIST=x           | 3/4 1/2 1 | masks=None
# single processes; a step's number alone makes no step
batch         |                                                              | 0/1 0/1 0 | first_host=127.0.0.1; job=7; step=None; node=nid001001
batch         | SLURM_STEP_ID=4294967291 SLURM_STEP_NUM_TASKS=4              | 0/1 0/1 0 | source=single process
              |                                                              | 0/1 0/1 0 | node=nid001002; job=None; step=None
              | PMI_RANK=0 PMI_SIZE=1                                        | 0/1 0/1 0 |
              | MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=1                  | 0/1 0/1 0 |
# settings of MPI
              | PMI_NO_PREINITIALIZE=1 PMI_MMAP_SYNC_WAIT_TIME=3600 PMIX_MCA_gds=hash OMPI_MCA_btl=self | 0/1 0/1 0 |
# clouds with one node
              | AWS_BATCH_JOB_NUM_NODES=1 PET_NNODES=1 PET_NPROC_PER_NODE=auto SKYPILOT_NUM_NODES=1 | 0/1 0/1 0 |
              | MV2_USE_CUDA=1 HOROVOD_FUSION_THRESHOLD=0 PBS_NODENUM=0 PBS_TASKNUM=1 LSF_PM_TASKID=1 | 0/1 0/1 0 |
              | PALS_STARTUP_SIZE=none _CONDOR_NPROCS=1 _CONDOR_PROCNO=0     | 0/1 0/1 0 |
# nodes of allocations
              | PBS_JOBID=7.pbs PBS_NODEFILE=FILES/two                       | 0/1 0/1 0 | allocation=(1, 2, 'mpiexec')
# torchrun comes before the step that it runs in
step torchrun |                                                              | 5/8 1/4 1 | exported=True; first_host=node7; job=7; node=nid001003
torchrun      |                                                              | 5/8 1/4 1 | node=nid001002; source=torchrun run none
# mpirun and mpiexec
mpi           |                                                              | 3/4 1/2 1 | first_host=nid001001; node=nid001002; job=7; source=Open MPI
hydra         |                                                              | 3/4 1/2 1 | first_host=nid001001; node=nid001002; job=7; source=MPICH
pals pmi      | PBS_NODEFILE=FILES/nodes                                     | 3/4 1/2 1 | first_host=nid001001; source=PALS
pals pmi      | PBS_NODEFILE=FILES/absent                                    | 3/4 1/2 1 | first_host=None
# another name than the allocation's: counted in blocks
mpi           | SLURM_JOB_NODELIST=n[1-2]                                    | 3/4 1/2 1 |
# in whichever order its ranks are
mpi           | SLURM_JOB_NODELIST=n[1-2] OMPI_COMM_WORLD_RANK=0             | 0/4 1/2 0 |
mpi           | OMPI_COMM_WORLD_LOCAL_SIZE=4 MPI_LOCALNRANKS=4               | 3/4 1/4 0 | first_host=127.0.0.1
# short and long names of a host are the same host
mpi           | SLURM_JOB_NODELIST= PBS_NODEFILE=FILES/long OMPI_COMM_WORLD_RANK=0 | 0/4 1/2 1 |
# `salloc -N3 mpirun -np 2`: the daemons are a step of three tasks, and a node may have no rank
mpi           | OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_NUM_NODES=3 SLURM_STEP_TASKS_PER_NODE=1(x3) | 1/2 1/2 0 |
"""  # noqa: E501


@pytest.mark.parametrize(("above", "is_of_job"), [("hydra_pmi_proxy", False), ("starter", True)])
def test_launches_of_hydra_on_one_node_of_a_job_are_told_apart_where_their_proxy_is_seen(
    tmp_path, monkeypatch, above, is_of_job
):
    monkeypatch.setattr("pytorch_launch.launchers.mpi.ancestors", lambda: [("9", "bash"), ("8", above)])
    assert bool(find(tmp_path, "hydra", f"{ALL_HERE} PBS_JOBID=7.pbs").launch) == is_of_job


@pytest.mark.parametrize("row", table(WORLDS), ids=name)
def test_a_process_is_a_rank_of_its_launchers_world(tmp_path, row):
    world = find(tmp_path, row["names"], row["changes"])
    assert shape(world) == row["world"]
    for field in filter(None, row["fields"].split("; ")):
        assert f"{field.partition('=')[0]}={getattr(world, field.partition('=')[0])}" == field


def test_the_nodes_of_a_job_of_lsf_are_counted():
    for hosts, count in (("a 4 b 4 c 4", 3), ("a 4", 1)):
        assert discover({"LSB_JOBID": "7", "LSB_MCPU_HOSTS": hosts}, "a").allocation == (1, count, "mpirun")


FAULTS = """
names         | changes                                                      | fault
# both variables are named, with their values
step          | SLURM_PROCID=4                                               | SLURM_PROCID=4 is outside 0 to 3...SLURM_STEP_NUM_TASKS=4
step          | SLURM_LOCALID=2                                              | SLURM_LOCALID=2...SLURM_STEP_TASKS_PER_NODE=2(x2)
step          | SLURM_STEP_NUM_TASKS=5 SLURM_NTASKS=5                        | SLURM_STEP_NUM_TASKS=5...TASKS_PER_NODE=2(x2)
step          | RANK=0                                                       | RANK=0...SLURM_PROCID=3
step          | WORLD_SIZE=8                                                 | WORLD_SIZE=8...SLURM_STEP_NUM_TASKS=4
step          | GROUP_RANK=0                                                 | GROUP_RANK=0...SLURM_NODEID=1
mpi           | OMPI_COMM_WORLD_RANK=4                                       | OMPI_COMM_WORLD_RANK=4...OMPI_COMM_WORLD_SIZE=4
mpi           | OMPI_COMM_WORLD_LOCAL_SIZE=5                                 | 5 ranks on this node...WORLD_SIZE=4
mpi           | WORLD_SIZE=8                                                 | WORLD_SIZE=8...OMPI_COMM_WORLD_SIZE=4
mpi           | GROUP_RANK=0                                                 | GROUP_RANK=0...Open MPI
pals pmi      | PALS_LOCAL_RANKID=2                                          | PALS_LOCAL_RANKID=2...PALS_LOCAL_SIZE=2
torchrun      | RANK=8                                                       | RANK=8 is outside ...WORLD_SIZE=8
# variables of two steps
step          | SLURM_NTASKS=2                                               | SLURM_NTASKS=2 is not SLURM_STEP_NUM_TASKS=4...Submit the job from a shell without
step          | SLURMD_NODENAME=nid001001                                    | SLURMD_NODENAME=nid001001 is not in SLURM_STEP_NODELIST=nid[001002-
step          | SLURM_STEP_NODELIST=nid[001002-001004]                       | nid[001002-001004] has more nodes than SLURM_STEP_TASKS
# launchers with fewer ranks than the step has tasks were started outside of it
step torchrun | RANK=0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 WORLD_SIZE=1          | WORLD_SIZE=1, but SLURM_STEP_NUM_TASKS=4. Unset ...TORCHELASTIC
step mpi      | SLURM_STEP_NUM_TASKS=8 SLURM_STEP_NUM_NODES=2                | WORLD_SIZE=4, but SLURM_STEP_NUM_TASKS=8. Unset ...OMPI_COMM_WORLD_RANK
# what is lost or missing: a rank does not train alone
step          | -SLURM_STEP_NUM_TASKS                                        | SLURM_PROCID=3: ranks of a launcher that is not...pass its variables on
              | SLURM_LOCALID=1                                              | SLURM_LOCALID=1: ranks of a launcher that is not
              | SLURM_NODEID=1 SLURM_PROCID=0                                | SLURM_NODEID=1: ranks of a launcher that is not
              | SLURM_STEP_NUM_TASKS=2                                       | SLURM_STEP_NUM_TASKS=2: ranks of a launcher that is not
              | SLURM_PROCID=3 PMI_RANK=0 PMI_SIZE=1                         | SLURM_PROCID=3: ranks of a launcher that is not
step          | -SLURM_LOCALID                                               | SLURM_LOCALID is not set
step          | -SLURM_JOB_ID                                                | SLURM_JOB_ID is not set
torchrun      | -RANK                                                        | RANK is not set, but other variables of its launcher are
pals          | PBS_NODEFILE=FILES/nodes                                     | PMI_SIZE is not set, but other variables of its launcher are
# it would wait
batch         | WORLD_SIZE=8                                                 | WORLD_SIZE=8 ... no srun, mpirun or torchrun... conda-python-simple
# outside of Slurm's notation
step          | SLURM_STEP_TASKS_PER_NODE=                                   | SLURM_STEP_TASKS_PER_NODE=
step          | SLURM_STEP_TASKS_PER_NODE=2(x)                               | SLURM_STEP_TASKS_PER_NODE=
step          | SLURM_STEP_TASKS_PER_NODE=2(x2                               | SLURM_STEP_TASKS_PER_NODE=
step          | SLURM_STEP_TASKS_PER_NODE=2(x2)1                             | SLURM_STEP_TASKS_PER_NODE=
step          | SLURM_STEP_TASKS_PER_NODE=2(x99999999999999999999999999999999999999999999999999) | SLURM_STEP_TASKS_PER_NODE=
step          | SLURM_STEP_NODELIST=nid[001002-                              | SLURM_STEP_NODELIST: ...unmatched bracket
"""  # noqa: E501


@pytest.mark.parametrize("row", table(FAULTS), ids=name)
def test_a_world_is_never_guessed(tmp_path, row):
    with pytest.raises(LaunchError) as raised:
        find(tmp_path, row["names"], row["changes"])
    assert [part for part in row["fault"].split("...") if part not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_CPUS_ON_NODE",
    ],
)
@pytest.mark.parametrize("value", ["two", "-1", "1.5", "²", " 1", "1" * 5000])
def test_a_value_that_is_no_number_is_named(step, name, value):
    shown = value if len(value) < 18 else f"{value[:18]}..."
    with pytest.raises(LaunchError) as raised:
        discover({**step, name: value}, "vm")
    assert f"{name}={shown} is not a number of at most 18 digits" in str(raised.value)


UNKNOWN = """
PMI_RANK=1 PMI_SIZE=2
PMI_RANK=0 PMI_SIZE=2 PMI_FD=5
MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1
JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=1
PMIX_RANK=1 PMIX_NAMESPACE=prterun-n1-7@1
ALPS_APP_PE=1
PALS_LOCAL_RANKID=1 PALS_NODEID=0
OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1
MPI_LOCALNRANKS=2
FLUX_TASK_LOCAL_ID=1
HOROVOD_RANK=1 HOROVOD_SIZE=2
MPI_RANKID=1 MPI_NRANKS=2
PBS_NODENUM=1 PBS_JOBID=7.pbs
PBS_NODENUM=0 PBS_TASKNUM=2 PBS_JOBID=7.pbs
LSF_PM_TASKID=2 LSB_JOBID=7
_CONDOR_PROCNO=0 _CONDOR_NPROCS=2
SUBMITIT_LOCAL_GLOBALID=1 SUBMITIT_LOCAL_LOCALID=1 SUBMITIT_LOCAL_NTASKS=2
PMI_RANK=1 PMI_SIZE=2 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2
AWS_BATCH_JOB_NUM_NODES=2
SKYPILOT_NUM_NODES=2
DSTACK_NODES_NUM=2
AZUREML_NODE_COUNT=2
VC_MASTER_NUM=1 VC_WORKER_NUM=3
PET_NNODES=2
PET_NNODES=1:4
"""


@pytest.mark.parametrize("unknown", UNKNOWN.strip().splitlines())
def test_ranks_of_a_launcher_that_is_not_known_are_an_error_and_never_worlds_of_one(tmp_path, unknown):
    for names in ("", "batch"):
        with pytest.raises(LaunchError, match="ranks of a launcher that is not known. Start them with srun") as raised:
            find(tmp_path, names, unknown)
        assert any(word in str(raised.value) for word in unknown.split())


@pytest.mark.parametrize(
    ("names", "same", "others"),
    [
        ("mpi", "OMPI_COMM_WORLD_RANK=2", "PMIX_NAMESPACE=1997275138"),
        ("hydra", "SLURM_PROCID=0 SLURM_NODEID=0 PMI_RANK=0 MPI_LOCALRANKID=0", "SLURM_STEP_ID=2"),
        ("pals pmi", "PBS_JOBID= PALS_RANKID=0 PALS_LOCAL_RANKID=0 PALS_NODEID=0", "PALS_APID=6cd9"),
    ],
)
def test_all_ranks_of_a_launch_share_its_number_and_another_launch_has_another(tmp_path, names, same, others):
    number = find(tmp_path, names).launch
    assert find(tmp_path, names, same, "nid001001").launch == number != find(tmp_path, names, others).launch
    assert number is not None


def test_without_a_job_mpich_gives_its_ranks_no_number():
    env = {name: value for name, value in ENVIRONMENTS["hydra"].items() if "SLURM" not in name}
    assert discover(env, "a").launch is None


@pytest.mark.parametrize(
    ("names", "first_task"),
    [
        ("mpi", "OMPI_COMM_WORLD_LOCAL_RANK=0"),
        ("hydra", "MPI_LOCALRANKID=0"),
        ("pals pmi", "PALS_LOCAL_RANKID=0"),
        ("step", "SLURM_LOCALID=0"),
        ("torchrun", "LOCAL_RANK=0"),
        ("flux", "FLUX_TASK_LOCAL_ID=0"),
    ],
)
def test_every_command_knows_the_first_task_of_a_node(names, first_task):
    env = {name: value for each in names.split() for name, value in ENVIRONMENTS[each].items()}
    assert not is_first_task_of_node(env)
    assert is_first_task_of_node(changed(env, first_task))
    assert is_first_task_of_node({})


def test_a_task_whose_engine_detaches_the_container_is_seen_by_its_process(monkeypatch, step):
    step["SLURM_TASK_PID"] = str(os.getpid())
    monkeypatch.setattr(inherited, "ancestors", lambda: [("9", "conmon"), ("1", "systemd")])
    monkeypatch.setattr(inherited, "sees_processes_of_host", lambda: True)
    assert discover(step, "vm").rank == 3


@pytest.mark.parametrize("task", ["4711", None])
def test_slurms_variables_of_a_process_that_slurm_did_not_start_are_an_error(monkeypatch, step, task):
    """From a file, or from a shell of yesterday; SLURM_TASK_PID is there, and none of the parents is slurmstepd."""
    step["SLURM_TASK_PID"] = "99999999"
    above = [("7", "bash"), ("1", "systemd")]
    if task:
        above.insert(1, (task, "slurmstepd"))
    monkeypatch.setattr(inherited, "ancestors", lambda: above)
    for sees_host in (False, True):
        monkeypatch.setattr(inherited, "sees_processes_of_host", lambda sees_host=sees_host: sees_host)
        if sees_host and not task:
            with pytest.raises(LaunchError, match="SLURM_PROCID=3 of Slurm step 7.0 is set, but no slurmstepd has"):
                discover(step, "vm")
        else:  # in a container with process numbers of its own, healthy ranks look the same
            assert discover(step, "vm").rank == 3

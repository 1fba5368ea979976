"""Environments as a shell prints them, and those of a Slurm step and a batch script."""


def variables(text):
    """The variables of `text`, words of the form NAME=value."""
    return dict(word.split("=", 1) for word in text.split())


def changed(env, text="", **more):
    """The variables `env`, with those of `text` and `more` in place of theirs."""
    found = dict(env)
    found.update(variables(text), **more)
    return found


#: Task 3 of `srun -N2 --ntasks-per-node=2`, step 0 of job 7, Slurm 22.05. The job has one more node, in front.
STEP = variables(
    "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001003] SLURM_NODELIST=nid[001001-001003] SLURM_NTASKS=4 "
    "SLURM_STEP_ID=0 SLURM_STEP_NODELIST=nid[001002-001003] SLURM_STEP_NUM_NODES=2 "
    "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NODEID=1 "
    "SLURM_CPUS_ON_NODE=8 SLURMD_NODENAME=nid001003"
)
#: What task 0 of that step has instead.
RANK_0 = variables("SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURMD_NODENAME=nid001002")
#: A batch script of that job before any srun, Slurm 22.05.
BATCH_SCRIPT = variables(
    "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001003] SLURM_NODELIST=nid[001001-001003] SLURM_NTASKS=4 "
    "SLURM_NPROCS=4 SLURM_TASKS_PER_NODE=2,1(x2) SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
    "SLURM_CPUS_ON_NODE=8 SLURMD_NODENAME=nid001001"
)
#: Rank 3 of four on two nodes, as seen with Open MPI 4.1.4 (Debian 12, in job 7 of a testbed): the remote daemon is a
#: step of its own, and its ranks inherit that step.
MPIRUN = variables(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_NAMESPACE=1997275137 SLURM_JOB_ID=7 SLURM_JOB_NODELIST=nid[001001-001002] "
    "SLURMD_NODENAME=nid001002 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=nid001002 SLURM_STEP_NUM_TASKS=1 "
    "SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_CPUS_ON_NODE=8"
)

"""Environments as a shell prints them, and those of a Slurm step and a batch script."""


def variables(text):
    """The variables of `text`, words of the form NAME=value."""
    return dict(word.split("=", 1) for word in text.split())


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

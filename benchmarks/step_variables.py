"""The variables that Slurm sets for one rank of a step, so that a rank can be measured without its step."""


def step_variables(*, node_list, nodes, tasks_per_node, rank):
    """The variables of `rank` in a step with `tasks_per_node` tasks on each of `nodes`.

    `nodes` is a list of names, `node_list` the same as Slurm abbreviates it (srun(1), "OUTPUT ENVIRONMENT
    VARIABLES"). The step is the first of its job and uses all nodes of the job.
    """
    tasks = str(len(nodes) * tasks_per_node)
    counts = f"{tasks_per_node}(x{len(nodes)})" if len(nodes) > 1 else str(tasks_per_node)
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": node_list,
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
        "SLURM_NTASKS": tasks,
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": node_list,
        "SLURM_STEP_NUM_NODES": str(len(nodes)),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": counts,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % tasks_per_node),
        "SLURM_NODEID": str(rank // tasks_per_node),
        "SLURM_CPUS_ON_NODE": str(tasks_per_node),
        "SLURMD_NODENAME": nodes[rank // tasks_per_node],
    }

"""Plans of ranks on systems that are not at hand: the launcher itself, on nodes that are directories."""

import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
# the launcher is a command, and no installed package; the nodes are those of its tests, which name their sources
sys.path[1:1] = [str(TREE / "runscripts"), str(TREE / "tests" / "unit" / "runscripts")]
import node_trees  # noqa: E402
from pytorch_launch.facts import Facts  # noqa: E402
from pytorch_launch.plan import make_plan  # noqa: E402
from pytorch_launch.topology import cpu_list  # noqa: E402

__all__ = ["cpu_list", "node_trees", "plan_of", "step_variables"]

HOSTS = "nid005001", "nid005002"


def step_variables(node, local_rank, per_node, cpus):
    """What Slurm sets in a task of `srun -N2 --ntasks-per-node=...`, the variables that a plan depends on."""
    return {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "nid[005001-005002]",
        "SLURM_STEP_NUM_NODES": str(len(HOSTS)),
        "SLURM_STEP_NUM_TASKS": str(per_node * len(HOSTS)),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x{len(HOSTS)})",
        "SLURM_PROCID": str(node * per_node + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_CPUS_ON_NODE": str(cpus),
        "SLURM_GPUS_ON_NODE": str(per_node),
        "SLURMD_NODENAME": HOSTS[node],
        "TMPDIR": "/tmp",  # noqa: S108  (nothing is written)
    }


def plan_of(root, allowed, local_rank, per_node, node=0):
    """The Plan of a rank of a step on two nodes whose hardware is that of `root`, with the CPUs `allowed`."""
    env = step_variables(node, local_rank, per_node, len(allowed))
    facts = Facts(host=HOSTS[node], pid=4711, launcher=4710, cpus=set(allowed), uid=1000, root=root)
    return make_plan(env, facts)

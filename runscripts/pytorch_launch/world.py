# SPDX-License-Identifier: BSD-3-Clause
"""The world of a launch: this process among the ranks that were started with it; and the variables that describe it."""

from pytorch_launch import LaunchError, Record

# --virtual-local-rank sets it, for launches inside that one, where LOCAL_RANK=0 contradicts nothing.
VIRTUAL = "PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK"

# Beginning of the variables with which the agent of `torchrun-distributed` tells its workers what it had: THREADS, the
# OMP_NUM_THREADS that is not the user's; CPUS, the number of its CPUs; and OpenMP's variables, which it does without.
AGENT = "PYTORCH_LAUNCH_AGENT_"

# The name of this launch, by which a program can detect ranks of another launch at the rendezvous.
LAUNCH_ID = "PYTORCH_LAUNCH_ID"

# Prefixes of the variables that a module sets for some worlds only, as the world is not known when it is
# loaded: PYTORCH_MULTI_NODE_NCCL_NET becomes NCCL_NET if the ranks are on more than one node, PYTORCH_ONE_NODE_NCCL_NET
# if all of them are on one.
MULTI_NODE = "PYTORCH_MULTI_NODE_"
ONE_NODE = "PYTORCH_ONE_NODE_"
DISTRIBUTED = "PYTORCH_DISTRIBUTED_"

# How a node is called on the fast network, with `*` for its name up to the first dot; and the interfaces there by exact
# names, separated by blanks, in order of preference.
FABRIC_NAME = "PYTORCH_FABRIC_NAME"
SOCKET_IFNAME = "PYTORCH_SOCKET_IFNAME"

# The variables by which torch knows a rank, as torchrun(1) names them.
OF_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class Allocation(Record):
    """Tasks and nodes of a job, and the command that starts processes on all of them."""

    fields = "tasks nodes command"


ONE_TASK = Allocation(tasks=1, nodes=1, command="")


class World(Record):
    """This process among the ranks that were started with it.

    `rank`, `size`, `local_rank`, `local_size`, `node_rank`  as torch numbers them
    `node`           name of this node
    `first_host`     name of the node of rank 0, None if the launcher does not report it
    `source`         what started the world, for messages: `Slurm step 7.0`
    `launcher`       the Launcher; ALONE for a single process
    `job`, `step`    Slurm's numbers, None outside a job or a step
    `launch`         a number that identifies the launch where there is no step (a CRC of the launcher's own name for
                     it); None where the launcher gives none
    `restarts`       how often Slurm has requeued the job
    `node_cpus`      CPUs that the ranks of this node have together, None if not known
    `cpus_per_task`  CPUs that the user requested per rank, None if not requested
    `masks`          of the ranks of this node, a list of sets in the launcher's numbers, None if not known
    `unbound`        true if the launcher reports that it bound no rank to CPUs
    `binds_by_default`  true if the launcher binds ranks although its user may not have asked for it
    `node_gpus`      GPUs that all tasks of the step have on this node, None if Slurm does not report it
    `step_gpus`      the numbers of this task's GPUs, a list; None if Slurm does not report them
    `exported`       true if the launcher has exported torch's variables already (torchrun)
    `allocation`     the Allocation of which this is the only process; else of one task on one node
    `strays`         names of variables of a launch around this job, which do not hold for this process
    `problems`       Problems that follow from these
    """

    fields = (
        "rank size local_rank local_size node_rank node first_host source launcher job step launch restarts "
        "node_cpus cpus_per_task masks unbound binds_by_default node_gpus step_gpus exported "
        "allocation strays problems"
    )
    defaults = {  # noqa: RUF012
        "job": None,
        "step": None,
        "launch": None,
        "restarts": 0,
        "node_cpus": None,
        "cpus_per_task": None,
        "masks": None,
        "unbound": False,
        "binds_by_default": False,
        "node_gpus": None,
        "step_gpus": None,
        "exported": False,
        "allocation": ONE_TASK,
        "strays": (),
        "problems": (),
    }

    @property
    def spans_nodes(self):
        return self.local_size < self.size

    def variables(self):
        """The values of OF_TORCH, which are the first fields."""
        return dict(zip(OF_TORCH, map(str, self)))


def check_exported(env, world, sources, reason):
    """Raise LaunchError if one of torch's variables is exported with another value than `world` has.

    `sources` maps names of torch to the launcher's; `reason` is why the others have their values.
    """
    for name, value in world.variables().items():
        if name == "LOCAL_RANK" and env.get(VIRTUAL):
            continue  # exported by the launch around this one
        if env.get(name, value) in ("", value):
            continue
        because = reason
        if name in sources:
            because = f"{sources[name]}={env[sources[name]]}"
        remedy = f"unset {name}"
        if not sources:
            remedy += ", or, as a rank of another launcher, use conda-python-simple"
        raise LaunchError(f"{name}={env[name]} is exported, but {because}", remedy)

# SPDX-License-Identifier: BSD-3-Clause
"""The world of a launch: this process among the ranks that were started with it."""

from pytorch_launch import LaunchError, Value

# --virtual-local-rank sets it, for launches inside that one, where LOCAL_RANK=0 contradicts nothing.
VIRTUAL = "PYTORCH_LAUNCH_VIRTUAL_LOCAL_RANK"


class WorldError(LaunchError):
    """Variables that do not describe a world; the fault names them with their values."""


class World(Value):
    """This process among the ranks that were started with it.

    `rank`, `size`              in the world, rank from 0
    `local_rank`, `local_size`  among the ranks of this node
    `node_rank`                 of this node among the nodes, from 0
    `node`                      name of this node
    `first_host`                name of the node of rank 0, None if the launcher does not report it
    `source`                    what started the world, for messages
    `job`, `step`               Slurm's numbers, None outside a job or a step
    `launch`                    a number that all its ranks share, and another launch is unlikely to have, where
                                there is no step; None where the launcher gives none
    `reserved_port`             first port that `srun --resv-ports` set aside, or None
    `node_cpus`                 CPUs that the ranks of this node have together, None if not known
    `cpus_per_task`             CPUs that the user requested per rank, None if not requested
    `unbound`                   true if the launcher reports that it bound no rank to CPUs
    `exported`                  true if the launcher has exported torch's variables already
    `allocation`                tasks and nodes of the allocation, if this is its only process; else (1, 1)
    """

    __slots__ = (
        *("rank", "size", "local_rank", "local_size", "node_rank", "node", "first_host", "source"),
        *("job", "step", "launch", "reserved_port", "node_cpus", "cpus_per_task", "unbound", "exported", "allocation"),
    )
    DEFAULTS = {
        **dict.fromkeys(("job", "step", "launch", "reserved_port", "node_cpus", "cpus_per_task")),
        "unbound": False,
        "exported": False,
        "allocation": (1, 1),
    }

    @property
    def reports_for_node(self):
        """Whether this rank reports what all ranks of its node would report."""
        return self.local_rank == 0

    @property
    def spans_nodes(self):
        """Whether other ranks are on other nodes."""
        return self.local_size < self.size

    def variables(self):
        """The variables by which torch knows a rank, as torchrun(1) names them."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.node_rank),
        }

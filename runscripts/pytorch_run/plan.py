# SPDX-License-Identifier: BSD-3-Clause
"""The nodes that are left, which of them run the next step, and with how many tasks."""

from pytorch_launch import LaunchError, is_number

from pytorch_run.options import OptionError

SHOWN_NODES = 8


class Plan:
    """The nodes of an allocation for the steps of `options`.

    `nodes`      the nodes that have not failed, in the order of their use
    `wanted`     the number of nodes of a step
    `least`      the number of nodes that is enough if no more are left
    """

    def __init__(self, options, nodes, env):
        self.options = options
        self.nodes = list(nodes)
        self.env = env
        self.failed = {}
        self.wanted = _wanted(options, len(nodes))
        self.least = min(options.min_nodes or self.wanted, self.wanted)

    @property
    def shortage(self):
        """The sentence about too few nodes, None if there are enough."""
        if len(self.nodes) >= self.least:
            return None
        failed = show_nodes(list(self.failed))
        return (
            f"No spare node is left: {len(self.nodes)} of the {self.least} nodes that it needs, as {failed} failed. "
            f"Submit again with a larger -N, and with --exclude={','.join(self.failed)}"
        )

    def require_nodes(self):
        """Raise LaunchError if too few nodes are left."""
        if self.shortage:
            error = LaunchError(self.shortage)
            error.status = 1
            raise error

    def leave_out(self, node, reason, report):
        """Use a node no longer."""
        if node in self.nodes:
            self.nodes.remove(node)
            self.failed[node] = reason
            report(f"{node} failed: {reason}")

    def put_last(self, nodes):
        """Use these nodes only if no others are left."""
        self.nodes.sort(key=lambda node: node in nodes)

    def next_nodes(self):
        """The nodes of the next step."""
        return self.nodes[: self.wanted]

    def step_options(self, nodes):
        """The options of srun for a step on these nodes."""
        return [
            *self.options.srun,
            f"--nodes={len(nodes)}",
            f"--nodelist={','.join(nodes)}",
            *self._tasks(len(nodes)),
        ]

    def _tasks(self, count):
        if self.options.ntasks is not None:
            return [f"--ntasks={max(count, self.options.ntasks * count // self.wanted)}"]
        if any(option.startswith("--ntasks-per-") for option in self.options.srun):
            return []
        per_node = self.env.get("SLURM_NTASKS_PER_NODE") or _uniform(self.env.get("SLURM_TASKS_PER_NODE", ""))
        return [f"--ntasks-per-node={per_node}"] if per_node else []


def show_nodes(nodes):
    """Nodes for a message, the first of many."""
    more = f" and {len(nodes) - SHOWN_NODES} more" if len(nodes) > SHOWN_NODES else ""
    return ",".join(nodes[:SHOWN_NODES]) + more


def _wanted(options, available):
    """The number of nodes of a step. Raises OptionError if the allocation has too few."""
    spare = options.spare or 0
    wanted = options.nodes or available - spare
    if wanted < 1 or wanted + spare > available:
        needed = f"-N{wanted} and --spare {spare}" if options.nodes else f"--spare {spare}"
        raise OptionError(
            f"{needed} need {max(wanted, 1) + spare} nodes, and the allocation has {available}",
            f"request more: salloc --no-kill -N{max(wanted, 1) + spare}",
        )
    return wanted


def _uniform(text):
    """2 of `2(x3)` or `2`, None if nodes differ."""
    count, _, rest = text.partition("(x")
    return int(count) if is_number(count) and (not rest or rest.endswith(")")) else None

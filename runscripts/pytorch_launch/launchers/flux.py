# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of Flux.

A task has its rank, its number on the node, and the numbers of tasks and of nodes (flux-environment(7), "JOB
ENVIRONMENT"), but no variable with the node of rank 0 or the number of tasks on its node. These come from an exported
MASTER_ADDR, with as many tasks on each node; or from `flux job taskmap` (flux-job(1)), one process per rank, which
connects to the broker of the node.
"""

import os

from pytorch_launch import NO_PYTHON, LaunchError, named_tuple
from pytorch_launch.launchers import FLUX
from pytorch_launch.launchers.variables import check_inside, launch_number, make_world, number
from pytorch_launch.topology import parse_cpu_list

OF_FLUX = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")

EXPORT = 'in the job script, before flux run: export MASTER_ADDR=$(get-master "$(flux getattr hostlist)")'

Layout = named_tuple("Layout", "first_host local_size node_rank")
Layout.__doc__ = "The node of rank 0, the number of ranks on this node, and the number of this node."

Tasks = named_tuple("Tasks", "host ranks")
Tasks.__doc__ = "A node of a job and the ranks there, a set."


def task(env, hostname):
    """The world of a task of Flux."""
    size = number(env, "FLUX_JOB_SIZE")
    check_inside(env, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", size)
    layout = _layout(env, size)
    return make_world(
        env,
        OF_FLUX,
        local_size=layout.local_size,
        node_rank=layout.node_rank,
        node=hostname,
        first_host=layout.first_host,
        source=f"Flux job {env.get('FLUX_JOB_ID')}",
        launcher=FLUX,
        launch=launch_number(env.get("FLUX_JOB_ID")),
    )


def _layout(env, size):
    nodes = number(env, "FLUX_JOB_NNODES")
    if nodes <= 1:
        return Layout("127.0.0.1", size, 0)
    if env.get("MASTER_ADDR") and size % nodes == 0:
        return _even_layout(env, size // nodes, nodes)
    return _asked_layout(env, size, nodes)


def _even_layout(env, local_size, nodes):
    """The Layout of tasks that Flux counts node by node, or in turn over the nodes (flux-submit(1), --taskmap)."""
    rank = number(env, "FLUX_TASK_RANK")
    node_rank, local_rank = divmod(rank, local_size)
    if local_rank != number(env, "FLUX_TASK_LOCAL_ID"):
        node_rank = rank % nodes
    return Layout(env["MASTER_ADDR"], local_size, node_rank)


def _asked_layout(env, size, nodes):
    """The Layout that the command `flux` reports, a line `<host>: <ranks>` for each node, in their order."""
    job = env.get("FLUX_JOB_ID", "")
    text = flux(env, "job", "taskmap", "--to=hosts", job)
    if text is None:
        remedy = EXPORT
        if env.get("MASTER_ADDR"):
            remedy = f"with {size} tasks on {nodes} nodes put `flux` on PATH"
        raise LaunchError(f"the nodes of Flux job {job} are not known: `flux job taskmap` failed", remedy)
    on_nodes = _parse(text)
    node_of = {rank: index for index, tasks in enumerate(on_nodes) for rank in tasks.ranks}
    if sorted(node_of) != list(range(size)):
        raise LaunchError(f"`flux job taskmap --to=hosts {job}` does not list {size} tasks", EXPORT)
    first = node_of[0]
    own = node_of[number(env, "FLUX_TASK_RANK")]
    return Layout(on_nodes[first].host, len(on_nodes[own].ranks), (own - first) % len(on_nodes))


def _parse(text):
    """The Tasks of each node, none if a line is not like `node1: [0-3,8]` (flux-framework RFC 22)."""
    found = []
    for line in text.splitlines():
        host, _, ranks = line.partition(": ")
        try:
            found.append(Tasks(host.strip(), parse_cpu_list(ranks.strip().strip("[]"))))
        except ValueError:
            return []
    return found


def flux(env, *arguments):
    """The standard output of the command `flux`; None if it fails."""
    source, sink = os.pipe()
    child = os.fork()  # `subprocess` costs more than all of this package
    if child == 0:
        try:
            os.dup2(sink, 1)
            os.execvpe("flux", ["flux", *arguments], env)
        finally:
            os._exit(NO_PYTHON)
    os.close(sink)
    with os.fdopen(source, errors="surrogateescape") as output:
        text = output.read()
    if os.waitpid(child, 0)[1] != 0:
        return None
    return text

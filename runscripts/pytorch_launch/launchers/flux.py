# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of Flux, with as many tasks on each node.

A task has its rank, its number on the node, and the numbers of tasks and of nodes (flux-environment(7), "JOB
ENVIRONMENT"), but no variable with the node of rank 0. That is an exported MASTER_ADDR, or it comes from
`flux job taskmap` (flux-job(1)), one process per rank, which connects to the broker of the node.
"""

from pytorch_launch import LaunchError
from pytorch_launch.launchers import FLUX
from pytorch_launch.launchers.variables import launch_number, make_world, number
from pytorch_launch.nodelist import hosts

OF_FLUX = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")

ALIKE = "start as many on each node: --tasks-per-node"
EXPORT = 'in the job script, before flux run: export MASTER_ADDR=$(get-master "$(flux getattr hostlist)")'


def task(env, hostname):
    """The world of a task of Flux. Raises LaunchError."""
    rank = number(env, "FLUX_TASK_RANK")
    size = number(env, "FLUX_JOB_SIZE")
    nodes = number(env, "FLUX_JOB_NNODES")
    job = env.get("FLUX_JOB_ID", "")
    source = f"Flux job {job}"
    if 0 in (nodes, size) or size % nodes:
        raise LaunchError(f"{source} has {size} tasks on {nodes} nodes", ALIKE)
    local_size = size // nodes
    node_rank = _node_rank(rank, number(env, "FLUX_TASK_LOCAL_ID"), local_size, nodes)
    first_host = "127.0.0.1"
    if nodes > 1:
        first_host = env.get("MASTER_ADDR")
    if not first_host:
        first_host, node_rank = _read_taskmap(env, job, rank)
    return make_world(
        env,
        OF_FLUX,
        local_size=local_size,
        node_rank=node_rank,
        node=hostname,
        first_host=first_host,
        source=source,
        launcher=FLUX,
        launch=launch_number(job),
    )


def _node_rank(rank, local_rank, local_size, nodes):
    """The node of a rank. Flux counts node by node, or in turn over the nodes (flux-submit(1), --taskmap)."""
    if rank % local_size == local_rank:
        return rank // local_size
    if rank // nodes == local_rank:
        return rank % nodes
    fault = f"FLUX_TASK_RANK={rank} and FLUX_TASK_LOCAL_ID={local_rank} do not tell the node"
    raise LaunchError(fault, f"{ALIKE}, without --taskmap")


def _read_taskmap(env, job, rank):
    """The node of rank 0, and the number of the node of `rank`. Raises LaunchError."""
    nodes = []
    for line in flux(env, "job", "taskmap", "--to=hosts", job).splitlines():
        host, _, text = line.partition(": ")  # `0-3` or `[0,2]` (flux-framework RFC 22)
        ranks = hosts(f"[{text.strip('[]')}]")
        nodes.append((list(map(int, ranks)), host))
    nodes.sort()
    for index, (ranks, _) in enumerate(nodes):
        if rank in ranks and nodes[0][0][0] == 0:
            return nodes[0][1], index
    raise LaunchError(f"the nodes of Flux job {job} are not known: `flux job taskmap` failed", EXPORT)


def flux(env, *arguments):
    """The standard output of the command `flux`, "" if it fails."""
    from subprocess import CalledProcessError, check_output  # which only the ranks of such launches pay for

    try:
        return check_output(["flux", *arguments], env=env).decode(errors="replace")
    except (OSError, CalledProcessError):
        return ""

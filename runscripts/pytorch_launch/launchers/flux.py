# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of Flux.

A task has its rank, its number on the node, and the numbers of tasks and of nodes (flux-environment(7), "JOB
ENVIRONMENT"), but no variable with the node of rank 0 or the number of tasks on its node. These come from, in order:

- the file of Cray's PMI, which Flux writes where its plugin cray-pals is loaded (flux-shell-cray-pals(1), of
  flux-coral2), as on El Capitan. Reading it takes 0.2 ms for 8,000 ranks.
- an exported MASTER_ADDR, with as many tasks on each node: the job script looks it up once for all ranks
- `flux job taskmap --to=hosts` (flux-job(1)), one process per rank, which connects to the broker of the node: a task
  has no other access to the list. Starting any process takes 13 ms on two busy cores; the reply takes longer
"""

from pytorch_launch import NO_PYTHON, LaunchError
from pytorch_launch.launchers.mpi import read_layout
from pytorch_launch.topology import parse_cpu_list
from pytorch_launch.world import check_inside, make_world, number, text_number

OF_FLUX = ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID")

EXPORT = 'in the job script, before flux run: export MASTER_ADDR=$(get-master "$(flux getattr hostlist)")'


def task(env, hostname):
    rank, size, local_rank, nodes = (number(env, name) for name in (*OF_FLUX[:3], "FLUX_JOB_NNODES"))
    check_inside(env, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", size)
    first, local_size, node_rank = _layout(env, rank, size, local_rank, nodes)
    return make_world(
        env,
        OF_FLUX,
        local_size=local_size,
        node_rank=node_rank,
        node=hostname,
        first_host=first,
        source=f"Flux job {env.get('FLUX_JOB_ID')}",
        launch=text_number(env.get("FLUX_JOB_ID")),
    )


def _layout(env, rank, size, local_rank, nodes):
    """The node of rank 0, the number of ranks on this node, and the number of this node."""
    if nodes <= 1:
        return "127.0.0.1", size, 0
    layout = read_layout(env.get("PALS_APINFO"), rank)
    if layout is not None and layout[1] == size:
        return layout[0], layout[2], layout[3]
    if env.get("MASTER_ADDR") and size % nodes == 0:
        # Flux counts ranks node by node, or in turn over the nodes (flux-submit(1), --taskmap)
        local_size = size // nodes
        by_node, block = divmod(rank, local_size)
        return env["MASTER_ADDR"], local_size, by_node if block == local_rank else rank % nodes
    # the command `flux` reports a line `<host>: <ranks>` for each node, in their order
    job = env.get("FLUX_JOB_ID", "")
    text = flux(env, "job", "taskmap", "--to=hosts", job)
    if text is None:
        remedy = f"with {size} tasks on {nodes} nodes put `flux` on PATH" if env.get("MASTER_ADDR") else EXPORT
        raise LaunchError(f"the nodes of Flux job {job} are not known: `flux job taskmap` failed", remedy)
    lines = [line.partition(": ") for line in text.splitlines() if line.strip()]
    try:  # sets such as `0-3,8` (flux-framework RFC 22)
        layouts = [(host.strip(), parse_cpu_list(ranks.strip().strip("[]"))) for host, _, ranks in lines]
    except ValueError:
        layouts = []
    node_of = {number: node for node, (_, ranks) in enumerate(layouts) for number in ranks}
    if sorted(node_of) != list(range(size)):
        raise LaunchError(f"`flux job taskmap --to=hosts {job}` does not list {size} tasks", EXPORT)
    return layouts[node_of[0]][0], len(layouts[node_of[rank]][1]), (node_of[rank] - node_of[0]) % len(layouts)


def flux(env, *arguments):
    """The standard output of the command `flux`; None if it fails."""
    import os  # most launches start no program

    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(sink, 1)
            os.execvpe("flux", ["flux", *arguments], env)
        finally:
            os._exit(NO_PYTHON)
    os.close(sink)
    with os.fdopen(source, errors="surrogateescape") as output:
        text = output.read()
    return text if os.waitpid(child, 0)[1] == 0 else None

# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of srun, and where they start."""

from pytorch_launch import LaunchError, is_number, process, read
from pytorch_launch.nodelist import MOST_HOSTS, hosts
from pytorch_launch.world import (
    NODE_LISTS,
    STRAY_EXPORT,
    SUBMIT,
    check_inside,
    make_world,
    node_name,
    number,
    optional_number,
    read_list,
)

TASKS, STEP_NODES = "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"

# A batch script has SLURM_PROCID=0 and SLURM_NTASKS=8 as well, but it is not a step: a world of 8 would wait for
# seven ranks that never start. Only srun sets all of these.
STEP_MARKS = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", STEP_NODES)

# The steps of a shell that salloc starts on the first node (LaunchParameters=use_interactive_step; slurm.h), and of a
# batch script. Slurm 26.05 writes them as negative numbers.
INTERACTIVE, BATCH_SCRIPT = ("4294967290", "-6"), ("4294967291", "-5")

#: The variables of srun(1) with the values of OF_TORCH.
OF_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", TASKS, "SLURM_NODEID")

#: Where a rank cannot know the node of rank 0.
HETEROGENEOUS = "export MASTER_ADDR=<node of rank 0> before srun, or start the components as a heterogeneous job"


class OtherStepError(LaunchError):
    """Variables of two steps."""


def step(env, hostname):
    """The world of a Slurm step (srun(1), "OUTPUT ENVIRONMENT VARIABLES"), None for a process outside a step.

    A step may have fewer nodes than its job, so the job's variables are never read.
    """
    layout = _layout(env)
    if layout is None:
        return None
    (first, local_size, has_components), is_interactive = layout, env["SLURM_STEP_ID"] in INTERACTIVE
    # all components of `srun A : B` on one node: Slurm counts the tasks of each for itself
    is_one_node = has_components and local_size == number(env, "SLURM_STEP_NUM_TASKS")
    numbers = {"local_rank": number(env, "SLURM_PROCID"), "node_rank": 0} if is_one_node else {}
    port = env.get("SLURM_STEP_RESV_PORTS", "").partition(",")[0].partition("-")[0]  # of 12000-12003 or 12000,12005
    world = make_world(
        env,
        OF_SRUN,
        local_size=local_size,
        **numbers,
        node=node_name(env, hostname),
        first_host=first,
        source=f"Slurm step {env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}",
        job=number(env, "SLURM_JOB_ID"),
        step=int(INTERACTIVE[0]) if is_interactive else number(env, "SLURM_STEP_ID"),
        # the components of a heterogeneous step have reservations of their own
        reserved_port=int(port) if is_number(port) and int(port) < 65536 and not has_components else None,
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
        cpus_per_task=optional_number(env, "SLURM_CPUS_PER_TASK"),
        masks=_masks(env, local_size),
        unbound=env.get("SLURM_CPU_BIND_TYPE") == "none",
        allocation=job_allocation(env) if is_interactive else (1, 1, ""),
    )
    if world.size > 1 and env.get("SLURM_PTY_PORT") and _is_typed():
        fault = f"this shell is one of {world.size} tasks of {world.source}"
        remedy = f"start the ranks from it with srun --overlap -N{len(_tasks_per_node(env))} -n{world.size}"
        raise LaunchError(f"{fault}, and srun --pty connects only this one to the terminal", remedy)
    return world


def master(env):
    """The node of rank 0 of this step, else the first of the job. Raises LaunchError."""
    layout = _layout(env)
    if layout is None:
        # of a step that is not this process's, the list does not count
        lists = [env[name] for name in NODE_LISTS[has_marks(env) :] if env.get(name)]
        if not lists:
            raise LaunchError(f"none of {', '.join(NODE_LISTS)} is set", "run inside a job, or pass a list")
        return hosts(lists[0])[0]
    if layout[0] is None:
        raise LaunchError("Slurm does not report the node of rank 0 of this step", HETEROGENEOUS)
    return layout[0]


def job_allocation(env):
    """Tasks and nodes of the job, and what starts processes on all of them."""
    tasks, nodes, components = (
        optional_number(env, name) or 1 for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES", "SLURM_HET_SIZE")
    )
    return tasks, max(nodes, components), "srun"


def has_marks(env):
    """Whether this process has the variables of a step, which it may have inherited."""
    return all(env.get(name) for name in ("SLURM_STEP_ID", *STEP_MARKS))


def _layout(env):
    """What `_nodes` returns, None for a process outside a step.

    A batch script that was submitted from inside a step inherits the variables of that step, without the number of
    their job. The title of the process that started it names its own.
    """
    if not has_marks(env) or env["SLURM_STEP_ID"] in BATCH_SCRIPT:
        return None
    may_be_script = all(env.get(name, "0") == "0" for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"))
    if may_be_script and is_batch_script(env):
        return None
    try:
        return _nodes(env)
    except OtherStepError:
        if may_be_script and env.get("SLURM_TASKS_PER_NODE") == "1":
            return None  # whichever it is: the job has one task
        raise


def is_batch_script(env):
    """Whether slurmstepd started this task as a batch script; false where a container hides it."""
    parent = process(env["SLURM_TASK_PID"])[2] if env.get("SLURM_TASK_PID") else ""
    title = read(f"/proc/{parent}/cmdline") if parent else None
    return bool(title and title.startswith(f"slurmstepd: [{env.get('SLURM_JOB_ID')}.batch"))


def _is_typed():
    """Whether a user typed this command: a shell with job control gave the terminal to its process group.

    Or the session is of a shell without a script or a command: `source <(ddp-env)` runs in the shell's own group. (In a
    script, timeout(1) makes a group, without the terminal.)
    """
    fields = (read("/proc/self/stat") or "").rpartition(")")[2].split()
    group, session, terminal, foreground = (fields + 6 * [""])[2:6]
    shell, *words = (read(f"/proc/{session}/cmdline") or "").rstrip("\0").split("\0")
    is_shell = shell.endswith("sh") and all(word[:1] == "-" and word != "-c" for word in words)
    return terminal not in ("", "0") and (session != group == foreground or is_shell)


def _nodes(env):
    """The node of rank 0, None if not known; the number of tasks on this node; and whether the step has components.

    Slurm sorts the list over all components of a heterogeneous step, while ranks and SLURM_NODEID are counted through
    the components. `srun A : B` in a plain job does not name them. Raises OtherStepError for variables of two steps.
    """
    size, node_rank, local_rank = (number(env, f"SLURM_{name}") for name in ("STEP_NUM_TASKS", "NODEID", "LOCALID"))
    # the shell of salloc has the tasks of its job there
    if env.get("SLURM_NTASKS", str(size)) not in ("", str(size)) and env["SLURM_STEP_ID"] not in INTERACTIVE:
        raise OtherStepError(f"SLURM_NTASKS={env['SLURM_NTASKS']} is not SLURM_STEP_NUM_TASKS={size}", SUBMIT)
    nodes, counts, node = read_list(env, STEP_NODES), _tasks_per_node(env), env.get("SLURMD_NODENAME")
    if node and node not in nodes:
        raise OtherStepError(f"SLURMD_NODENAME={node} is not in SLURM_STEP_NODELIST={env[STEP_NODES]}", SUBMIT)
    if len(nodes) > len(counts):
        raise LaunchError(f"{STEP_NODES}={env[STEP_NODES]} has more nodes than {TASKS}={env[TASKS]}", SUBMIT)
    if sum(counts) != size:
        raise LaunchError(f"SLURM_STEP_NUM_TASKS={size} is not the sum of {TASKS}={env[TASKS]}", STRAY_EXPORT)
    check_inside(env, "SLURM_NODEID", TASKS, len(counts))
    index = nodes.index(node) if node and len(nodes) > 1 else node_rank
    text, rank = env.get("SLURM_GTIDS", ""), env.get("SLURM_PROCID")
    tasks = text.split(",")
    if text and (counts[index] != len(tasks) or tasks[local_rank:][:1] != [rank]):
        fault = f"SLURM_PROCID={rank} is not number SLURM_LOCALID={local_rank} in SLURM_GTIDS={text}"
        raise LaunchError(f"{fault}, of {TASKS}={env[TASKS]}", SUBMIT)
    if len(nodes) == 1 < len(counts):
        return nodes[0], size, True
    order = _components(env, set(nodes))
    if order and node and not (sorted(order) == sorted(set(nodes)) and order.index(node) == node_rank):
        fault = f"SLURM_NODEID={node_rank} of {node} does not follow from the components of the step, {','.join(order)}"
        raise LaunchError(fault, HETEROGENEOUS)
    if order or index == node_rank:
        return (order or nodes)[0], counts[index], bool(env.get("SLURM_HET_SIZE"))
    if text and (node_rank == 0) != ("0" in tasks):
        raise LaunchError(f"SLURM_NODEID={node_rank} of {node} does not follow from SLURM_GTIDS={text}", STRAY_EXPORT)
    first = None
    if len(counts) == 2:
        first = node if node_rank == 0 else next((host for host in nodes if host != node), None)
    return first, counts[index], True


def _components(env, nodes):
    """The nodes of a step of a heterogeneous job in the order of its components; none in another job."""
    count = min(optional_number(env, "SLURM_HET_SIZE") or 0, 128)  # MAX_HET_JOB_COMPS (slurm.h)
    names = [f"SLURM_JOB_NODELIST_HET_GROUP_{group}" for group in range(count)]
    return [host for name in names if env.get(name) for host in read_list(env, name) if host in nodes]


def _tasks_per_node(env):
    """The tasks of each node: Slurm writes 2, 2, 2, 1 as `2(x3),1`."""
    counts = []
    for group in env.get(TASKS, "").split(","):
        count, repeated, times = group.partition("(x")
        times = times if repeated else "1)"
        if not (is_number(count) and is_number(times[:-1]) and times.endswith(")") and int(times[:-1]) <= MOST_HOSTS):
            raise LaunchError(f"{TASKS}={env.get(TASKS, '')} is not like 2(x3),1", STRAY_EXPORT)
        counts += [int(count)] * int(times[:-1])
    return counts


def _masks(env, size):
    """The masks of the tasks on this node, which Slurm or the user chose, in Slurm's numbers; None if not known."""
    kind, entries = env.get("SLURM_CPU_BIND_TYPE"), env.get("SLURM_CPU_BIND_LIST", "").split(",")
    if kind not in ("map_cpu:", "mask_cpu:"):
        return None
    try:
        masks = [1 << int(entry, 0) if kind == "map_cpu:" else int(entry, 16) for entry in entries]
    except ValueError:
        return None
    sets = [{cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1} for mask in masks]
    return [sets[task % len(sets)] for task in range(size)]

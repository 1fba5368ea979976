# SPDX-License-Identifier: BSD-3-Clause
"""The worlds of srun, and where they start.

A step may have fewer nodes than its job, so the job's variables are not read (srun(1), "OUTPUT ENVIRONMENT VARIABLES").
"""

from pytorch_launch import LaunchError, Record, is_number, process, read
from pytorch_launch.launchers import SLURM, node_name
from pytorch_launch.launchers.inherited import SUBMIT, check_started_by_slurm
from pytorch_launch.launchers.variables import (
    NODE_LISTS,
    STEP_NODES,
    STRAY_EXPORT,
    check_inside,
    make_world,
    number,
    optional_number,
    read_list,
)
from pytorch_launch.nodelist import MOST_HOSTS, hosts
from pytorch_launch.world import ONE_TASK, Allocation

TASKS = "SLURM_STEP_TASKS_PER_NODE"

# A batch script has SLURM_PROCID=0 and SLURM_NTASKS=8 as well, but it is not a step: a world of 8 would wait for
# seven ranks that never start. Only srun sets all of these.
STEP_MARKS = ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", STEP_NODES)

# The steps of a shell that salloc starts on the first node (LaunchParameters=use_interactive_step; slurm.h), and of a
# batch script. Slurm 26.05 writes them as negative numbers.
INTERACTIVE_STEP = 4294967290
INTERACTIVE = (str(INTERACTIVE_STEP), "-6")
BATCH_SCRIPT = ("4294967291", "-5")

#: The variables of srun(1) with the values of OF_TORCH.
OF_SRUN = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", TASKS, "SLURM_NODEID")

#: Numbers that are 0 in a batch script.
OF_FIRST_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID")

#: Where a rank cannot know the node of rank 0.
HETEROGENEOUS = "export MASTER_ADDR=<node of rank 0> before srun, or start the components as a heterogeneous job"


class Layout(Record):
    """The node of rank 0, None if not known; the tasks on this node; whether the step has several components."""

    fields = "first_host local_size has_components"


def step(env, hostname):
    """The world of a Slurm step, None for a process outside a step."""
    layout = _layout(env)
    if layout is None:
        return None
    is_interactive = env["SLURM_STEP_ID"] in INTERACTIVE
    numbers = {}
    if layout.has_components and layout.local_size == number(env, "SLURM_STEP_NUM_TASKS"):
        # all components of `srun A : B` on one node: Slurm counts the tasks of each for itself
        numbers = {"local_rank": number(env, "SLURM_PROCID"), "node_rank": 0}
    world = make_world(
        env,
        OF_SRUN,
        local_size=layout.local_size,
        **numbers,
        node=node_name(env, hostname),
        first_host=layout.first_host,
        source=f"Slurm step {env.get('SLURM_JOB_ID')}.{env['SLURM_STEP_ID']}",
        launcher=_launcher(env),
        job=number(env, "SLURM_JOB_ID"),
        step=INTERACTIVE_STEP if is_interactive else number(env, "SLURM_STEP_ID"),
        node_cpus=optional_number(env, "SLURM_CPUS_ON_NODE"),
        cpus_per_task=optional_number(env, "SLURM_CPUS_PER_TASK"),
        masks=_masks(env, layout.local_size),
        unbound=env.get("SLURM_CPU_BIND_TYPE") == "none",
        allocation=job_allocation(env) if is_interactive else ONE_TASK,
    )
    check_started_by_slurm(env, world)
    _check_terminal(env, world)
    return world


def _launcher(env):
    """Slurm, with the nodes of this step in its hints."""
    nodes = env.get("SLURM_STEP_NUM_NODES") or "<nodes>"
    return SLURM._replace(one_task_per_node=SLURM.one_task_per_node.format(nodes=nodes))


def _check_terminal(env, world):
    """Raise LaunchError if a user types the command into one of several tasks of `srun --pty`."""
    if world.size == 1 or not env.get("SLURM_PTY_PORT") or not _is_typed():
        return
    fault = f"this shell is one of {world.size} tasks of {world.source}"
    remedy = f"start the ranks from it with srun --overlap -N{len(_tasks_per_node(env))} -n{world.size}"
    remedy += f", or with SLURM_OVERLAP=1 mpirun -np {world.size}"
    raise LaunchError(f"{fault}, and srun --pty connects only this one to the terminal", remedy)


def first_host(env):
    """The node of rank 0 of this step, else the first of the job. Raises LaunchError."""
    layout = _layout(env)
    if layout is not None:
        if layout.first_host is None:
            raise LaunchError("Slurm does not report the node of rank 0 of this step", HETEROGENEOUS)
        return layout.first_host
    for name in NODE_LISTS:
        if name == STEP_NODES and has_marks(env):
            continue  # of a step that is not this process's
        if env.get(name):
            return hosts(env[name])[0]
    raise LaunchError(f"none of {', '.join(NODE_LISTS)} is set", "run inside a job, or pass a list")


def job_allocation(env):
    """The Allocation of the Slurm job."""
    tasks = optional_number(env, "SLURM_NTASKS") or 1
    nodes = optional_number(env, "SLURM_JOB_NUM_NODES") or 1
    components = optional_number(env, "SLURM_HET_SIZE") or 1
    return Allocation(tasks=tasks, nodes=max(nodes, components), command="srun")


def has_marks(env):
    """Whether this process has the variables of a step, which it may have inherited."""
    return all(env.get(name) for name in STEP_MARKS)


def _layout(env):
    """The Layout of this step, None for a process outside a step.

    A batch script that was submitted from inside a step inherits the variables of that step, without the number of
    their job. The title of the process that started it names its own.
    """
    if not has_marks(env) or env["SLURM_STEP_ID"] in BATCH_SCRIPT:
        return None
    # srun sets SLURM_NTASKS for its tasks, sbatch for its script
    has_one_task = env.get("SLURM_NTASKS") == env.get("SLURM_TASKS_PER_NODE") == "1" != env["SLURM_STEP_NUM_TASKS"]
    may_be_script = all(env.get(name, "0") == "0" for name in OF_FIRST_TASK)
    if may_be_script and (has_one_task or is_batch_script(env)):
        return None
    return _read_layout(env)


def is_batch_script(env):
    """Whether slurmstepd started this task as a batch script; false where a container hides it."""
    if not env.get("SLURM_TASK_PID"):
        return False
    parent = process(env["SLURM_TASK_PID"]).parent
    title = read(f"/proc/{parent}/cmdline") or ""
    return title.startswith(f"slurmstepd: [{env.get('SLURM_JOB_ID')}.batch")


def _is_typed():
    """Whether a user typed this command: a shell with job control gave the terminal to its process group.

    Or the session is of a shell without a script or a command: `source <(ddp-env)` runs in the shell's own group. (In a
    script, timeout(1) makes a group, without the terminal.)
    """
    fields = (read("/proc/self/stat") or "").rpartition(")")[2].split()
    group, session, terminal, foreground = (fields + 6 * [""])[2:6]
    if terminal in ("", "0"):
        return False
    if session != group == foreground:
        return True
    shell, *words = (read(f"/proc/{session}/cmdline") or "").rstrip("\0").split("\0")
    return shell.endswith("sh") and all(word[:1] == "-" and word != "-c" for word in words)


def _read_layout(env):
    """The Layout by the variables of a step. Raises LaunchError for those of two steps.

    Slurm sorts the list over all components of a heterogeneous step, while ranks and SLURM_NODEID are counted through
    the components. `srun A : B` in a plain job does not name them.
    """
    nodes = read_list(env, STEP_NODES)
    counts = _tasks_per_node(env)
    _check_one_step(env, nodes)
    _check_counts(env, nodes, counts)
    node_rank = number(env, "SLURM_NODEID")
    index = node_rank
    node = env.get("SLURMD_NODENAME")
    if node and len(nodes) > 1:
        index = nodes.index(node)
    if len(nodes) == 1 < len(counts):
        return Layout(nodes[0], sum(counts), has_components=True)
    order = _components(env, set(nodes))
    if order:
        _check_order(order, nodes, node, node_rank)
        return Layout(order[0], counts[index], bool(env.get("SLURM_HET_SIZE")))
    if index == node_rank:
        return Layout(nodes[0], counts[index], bool(env.get("SLURM_HET_SIZE")))
    return Layout(_first_of_unnamed(env, nodes, node), counts[index], has_components=True)


def _check_one_step(env, nodes):
    """Raise LaunchError for variables that two steps, or a step and a job, have set."""
    size = number(env, "SLURM_STEP_NUM_TASKS")
    tasks = env.get("SLURM_NTASKS", "")
    # the shell of salloc has the tasks of its job there
    if tasks not in ("", str(size)) and env["SLURM_STEP_ID"] not in INTERACTIVE:
        raise LaunchError(f"SLURM_NTASKS={tasks} is not SLURM_STEP_NUM_TASKS={size}", SUBMIT)
    node = env.get("SLURMD_NODENAME")
    if node and node not in nodes:
        raise LaunchError(f"SLURMD_NODENAME={node} is not in SLURM_STEP_NODELIST={env[STEP_NODES]}", SUBMIT)


def _check_counts(env, nodes, counts):
    """Raise LaunchError unless the numbers of nodes and tasks fit each other."""
    size = number(env, "SLURM_STEP_NUM_TASKS")
    if len(nodes) > len(counts):
        raise LaunchError(f"{STEP_NODES}={env[STEP_NODES]} has more nodes than {TASKS}={env[TASKS]}", SUBMIT)
    if sum(counts) != size:
        raise LaunchError(f"SLURM_STEP_NUM_TASKS={size} is not the sum of {TASKS}={env[TASKS]}", STRAY_EXPORT)
    check_inside(env, "SLURM_NODEID", TASKS, len(counts))


def _check_order(order, nodes, node, node_rank):
    """Raise LaunchError unless the components' nodes, in their `order`, are those of the step and number this one."""
    if not node:
        return
    if sorted(order) != sorted(set(nodes)) or order.index(node) != node_rank:
        fault = f"SLURM_NODEID={node_rank} of {node} does not follow from the components of the step, {','.join(order)}"
        raise LaunchError(fault, HETEROGENEOUS)


def _first_of_unnamed(env, nodes, node):
    """The node of rank 0 in a step of components that Slurm does not name: known on two nodes only."""
    if len(_tasks_per_node(env)) != 2:
        return None
    if number(env, "SLURM_NODEID") == 0:
        return node
    return next((host for host in nodes if host != node), None)


def _components(env, nodes):
    """The nodes of a step of a heterogeneous job in the order of its components; none in another job."""
    count = min(optional_number(env, "SLURM_HET_SIZE") or 0, 128)  # MAX_HET_JOB_COMPS (slurm.h)
    order = []
    for group in range(count):
        name = f"SLURM_JOB_NODELIST_HET_GROUP_{group}"
        if env.get(name):
            order += [host for host in read_list(env, name) if host in nodes]
    return order


def _tasks_per_node(env):
    """The tasks of each node: Slurm writes 2, 2, 2, 1 as `2(x3),1`."""
    counts = []
    for group in env.get(TASKS, "").split(","):
        count, repeated, times = group.partition("(x")
        if not repeated:
            times = "1)"
        is_valid = is_number(count) and times.endswith(")") and is_number(times[:-1])
        if not is_valid or int(times[:-1]) > MOST_HOSTS:
            raise LaunchError(f"{TASKS}={env.get(TASKS, '')} is not like 2(x3),1", STRAY_EXPORT)
        counts += [int(count)] * int(times[:-1])
    return counts


def _masks(env, size):
    """The masks of the tasks on this node, which Slurm or the user chose, in Slurm's numbers; None if not known."""
    kind = env.get("SLURM_CPU_BIND_TYPE")
    entries = env.get("SLURM_CPU_BIND_LIST", "").split(",")
    try:
        if kind == "map_cpu:":
            sets = [{int(entry, 0)} for entry in entries]
        elif kind == "mask_cpu:":
            sets = [_cpus_of_mask(int(entry, 16)) for entry in entries]
        else:
            return None
    except ValueError:
        return None
    return [sets[task % len(sets)] for task in range(size)]


def _cpus_of_mask(mask):
    return {cpu for cpu in range(mask.bit_length()) if mask >> cpu & 1}

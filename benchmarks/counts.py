"""Counts what a command does, the same on a busy machine: instructions, by valgrind, and calls for files, by strace."""

import re

from benchmarks.session import NotMeasurable
from testbed.layout import TestbedError
from testbed.packages import find_optional

# A process writes its count when it ends, and before `exec`, which does not end it. All counts go to standard output:
# a file would be overwritten after `exec`.
CALLGRIND = (
    "--tool=callgrind",
    "--trace-children=yes",
    "--dump-before=execve",
    "--combine-dumps=yes",
    "--callgrind-out-file=/dev/stdout",
    "--dump-line=no",
    "--quiet",
)
COUNT = re.compile(r"^totals: (\d+)", re.MULTILINE)
#: Calls that name a file, one per line, as strace writes them: `1234 openat(AT_FDCWD, "/etc/hosts", ...`.
CALL = re.compile(r'^\d+ +\w+\((?:AT_FDCWD, |\d+, )?"([^"]*)"', re.MULTILINE)


def find(package):
    """The path of a program of the testbed's optional packages. Raises NotMeasurable."""
    path = find_optional(package)
    if path is None:
        raise NotMeasurable(f"the package {package} is missing")
    return path


def count_instructions(session, env, command):
    """Instructions of `command`, a list, with those of its children and of every program that they `exec`.

    None of these may close its standard output. Raises TestbedError if `command` fails.
    """
    # without the seed, Python's dictionaries have another order, and another cost, in every run
    output = session.run([find("valgrind"), *CALLGRIND, *command], {**env, "PYTHONHASHSEED": "0"})
    counts = COUNT.findall(output)
    if not counts:
        raise TestbedError(f"valgrind counted nothing in `{command[0]}`.")
    return sum(map(int, counts))


def count_file_calls(session, env, launch, command, *, below, ranks):
    """Calls per rank for files in the directories `below`, by all processes of the `ranks` that `launch` starts.

    Calls for the session's scratch directory, where the ranks run, do not count: Python searches the user's own
    directory at every import, wherever it is installed. Raises TestbedError if `command` fails.
    """
    traces = session.scratch / "traces"
    traces.mkdir(exist_ok=True)
    for trace in traces.iterdir():
        trace.unlink()
    # one file per rank, for all processes of the rank
    script = f'exec {find("strace")} -f --seccomp-bpf -qq -e trace=%file -o "$0/$SLURM_PROCID" "$@"'
    session.run([*launch, "bash", "-c", script, traces, *command], env)
    texts = [trace.read_text(errors="replace") for trace in traces.iterdir()]
    if len(texts) != ranks:
        raise TestbedError(f"strace followed {len(texts)} ranks of {ranks}.")
    return sum(count_calls(text, below, session.scratch) for text in texts) / ranks


def count_calls(trace, below, scratch):
    """Calls of a trace for files in the directories `below`, without those in `scratch`."""
    directories = tuple(f"{directory}/" for directory in below)
    own = f"{scratch}/"
    paths = (f"{path}/" for path in CALL.findall(trace))
    return sum(path.startswith(directories) and not path.startswith(own) for path in paths)


def scattered(count):
    """The list and the names of `count` nodes in runs of 1 to 8 with gaps between, as on a nearly full machine."""
    ranges = []
    nodes = []
    number = 1
    while len(nodes) < count:
        last = number + min(1 + len(ranges) % 8, count - len(nodes)) - 1
        ranges.append(f"{number:06d}-{last:06d}" if last > number else f"{number:06d}")
        nodes += [f"nid{each:06d}" for each in range(number, last + 1)]
        number = last + 2
    return f"nid[{','.join(ranges)}]", nodes


def step_variables(node_list, nodes, *, tasks_per_node, rank):
    """The variables that Slurm sets for a rank of a step, so that it can run alone (srun(1), "OUTPUT ENVIRONMENT").

    `nodes` is a list of names, `node_list` the same as Slurm abbreviates it. The step is the first of its job and uses
    all nodes of the job.
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

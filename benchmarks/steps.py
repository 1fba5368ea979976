"""Rows on single steps of a job: launching, the first step, CPU time, `import torch`, and `module load`."""

import sys
import time
from pathlib import Path

from benchmarks import counts
from benchmarks.programs.cpu_seconds import find_reports
from benchmarks.session import PROGRAMS
from testbed.layout import NODES, TestbedError
from testbed.recipes import CONTAINER, VENV, module

#: Two ranks share a core: the testbed's nodes are one machine.
FOUR_RANKS = ("srun", "-N2", "--ntasks-per-node=2")
#: A core for each rank. With fewer CPUs per task Slurm binds both ranks to the first core of their node, which is
#: the same core on one machine.
TWO_RANKS = ("srun", "-N2", "--ntasks-per-node=1", "--cpus-per-task=2")
#: The node that `programs/exec-only` uses as the master.
ONE_NODE = ("srun", "-N1", f"--nodelist={NODES[0]}")
#: As many ranks as a LUMI-G node has GPUs; more than the machine has cores.
RANKS = 8
NODE_OF_RANKS = (*ONE_NODE, f"-n{RANKS}", "--overcommit")
ON_ONE_NODE = (*ONE_NODE, "-n2")
LAUNCHERS = ("conda-python-distributed", PROGRAMS / "exec-only")
PRINT_TIME = ("-c", "import time; print(time.time())")
IMPORT_TORCH = ("-c", "import torch")
#: A start of Python that no `.pth` file of the machine makes slower.
CLEAN_PYTHON = ("-I", "-S", "-c", "pass")
#: Loads per measurement: a single one is as short as the noise.
LOADS = 20
#: What images see of shared file systems under other names.
BOUND = ("/runscripts", "/payload", "/user-software")
#: Runs a command in the image as where an administrator lets the ranks of a node share one mount.
SHARE_IMAGE = """
configuration=$(singularity buildcfg | sed -n 's/^APPTAINER_CONF_FILE=//p')
shared=$(sed 's/^shared loop devices = no/shared loop devices = yes/' "$configuration") || exit
exec singularity --config <(echo "$shared") exec "$SIF" "$@"
"""
IN_SHARED_IMAGE = ("bash", "-c", SHARE_IMAGE, "bash")
#: How a recipe with `packed = True` packs an installation (easyblocks/pytorchvenv.py).
PACK = ("-no-progress", "-no-xattrs", "-all-root", "-comp", "lz4", "-no-fragments", "-p", ".packed f 444 0 0 true")


def launch(session, *, recipe, srun, program, ranks):
    """Seconds until all ranks have printed the time, behind the launch script and behind plain assignments."""
    env = session.load(recipe)
    inside = []
    if recipe == CONTAINER:
        inside = ["singularity", "exec", "--bind", str(PROGRAMS), env["SIF"]]
    while True:
        yield [tuple(_until_the_last(session, env, [*srun, *inside, each, *program], ranks) for each in LAUNCHERS)]


def _until_the_last(session, env, command, ranks):
    """Seconds until the last of the `ranks` prints the time; the nodes of the testbed share one clock."""
    start = time.time()
    lines = session.run(command, env).split()
    if len(lines) != ranks:
        raise TestbedError(f"`{' '.join(map(str, command[:4]))} ...` started {len(lines)} ranks of {ranks}.")
    return max(map(float, lines)) - start


def instructions(session):
    """Instructions of a start of Python behind the launch script, and of the same start alone."""
    env = session.load(VENV)
    env.update(counts.step_variables(",".join(NODES[:2]), NODES[:2], tasks_per_node=2, rank=0))
    env["TMPDIR"] = str(session.scratch)
    while True:
        commands = ([each, *CLEAN_PYTHON] for each in ("conda-python-distributed", "python"))
        yield [tuple(counts.count_instructions(session, env, command) for command in commands)]


def large_world(session):
    """Instructions of the launch script on the last rank of a large world that never ran, and of one node."""
    loaded = session.load(VENV)
    worlds = [counts.scattered(4096), ("nid000001", ["nid000001"])]
    environments = []
    for node_list, nodes in worlds:
        last = len(nodes) * RANKS - 1
        step = counts.step_variables(node_list, nodes, tasks_per_node=RANKS, rank=last)
        environments.append(loaded | step)
    command = ["conda-python-distributed", "--dry-run"]
    while True:
        yield [tuple(counts.count_instructions(session, env, command) for env in environments)]


def cpu(session):
    """The CPU time of two ranks: behind the launch script, and behind plain assignments."""
    env = session.load(VENV)
    job = PROGRAMS / "all_reduce.py"
    while True:
        commands = ([each, job] for each in LAUNCHERS)
        yield [tuple(sum(cpu_of_tasks(session, env, ON_ONE_NODE, command, tasks=2)) for command in commands)]


def cpu_of_tasks(session, env, srun, command, *, tasks):
    """The CPU seconds of each task, with all that it starts."""
    # sys.executable, because the first Python on PATH may be the image's
    seconds = find_reports(session.run([*srun, sys.executable, PROGRAMS / "cpu_seconds.py", *command], env))
    if len(seconds) != tasks:  # a side without one of its tasks would seem cheap
        raise TestbedError(f"{len(seconds)} tasks of {tasks} reported their CPU seconds.")
    return seconds


def import_once(session):
    """Seconds of `import torch` by one process, in the image and on the host."""
    image = session.load(CONTAINER)
    host = session.load(VENV)
    inside = ["singularity", "exec", image["SIF"]]
    while True:
        a = session.time([*inside, "python", *IMPORT_TORCH], image)
        yield [(a, session.time(["python", *IMPORT_TORCH], host))]


def import_by_ranks(session, prefix=()):
    """CPU seconds per rank of 8 ranks on one node that import torch, from the image and from the host's files."""
    image = session.load(CONTAINER)
    host = session.load(VENV)
    while True:
        yield [(_import_cpu(session, image, prefix), _import_cpu(session, host))]


def import_packed(session):
    """The same from the venv module packed as its recipe would, and unpacked."""
    env = session.load(VENV)
    file = session.scratch / "venv.squashfs"
    session.run(["mksquashfs", env["EBROOTPYTORCH"], file, *PACK], env)
    packed = {**env, "PYTORCH_PACKED": str(file)}
    while True:
        yield [(_import_cpu(session, packed), _import_cpu(session, env))]


def _import_cpu(session, env, prefix=()):
    command = [*prefix, "conda-python-distributed", *IMPORT_TORCH]
    return sum(cpu_of_tasks(session, env, NODE_OF_RANKS, command, tasks=RANKS)) / RANKS


def metadata(session):
    """Calls per rank of 8 ranks on one node that import torch: from an image, and from files."""
    shared = (session.layout.easybuild, Path.home(), *BOUND)
    command = ("conda-python-distributed", *IMPORT_TORCH)
    environments = [session.load(recipe) for recipe in (CONTAINER, VENV)]

    def calls(env):
        return counts.count_file_calls(session, env, NODE_OF_RANKS, command, below=shared, ranks=RANKS)

    while True:
        yield [tuple(calls(env) for env in environments)]


def load(session, *, recipe):
    """The mean seconds of loading the recipe's module, and of an empty one; only EasyBuild's modules are visible."""
    directory = session.scratch / "modulefiles"
    directory.mkdir()
    (directory / "empty.lua").write_text("-- loads nothing\n")
    env = session.environment("module unload pytorch-easybuild", f"module use {session.layout.modules} {directory}")

    def seconds_per_load(name):
        script = f"""
            source "$LMOD_PKG/init/bash"
            start=$EPOCHREALTIME
            for ((i = 0; i < {LOADS}; i++)); do (module load {name}) || exit 1; done
            echo "$start $EPOCHREALTIME" """
        start, end = session.run(["bash", "-c", script], env).split()
        return (float(end) - float(start)) / LOADS

    while True:
        yield [tuple(seconds_per_load(name) for name in (module(recipe), "empty"))]

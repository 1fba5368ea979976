"""Rows on single steps of a job: launching, CPU time, a silent name server, `import torch`, and `module load`."""

import socket
import sys
import time
from pathlib import Path

from benchmarks import counts
from benchmarks.programs.cpu_seconds import find_reports
from benchmarks.session import PROGRAMS, NotMeasurable
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
LAUNCHERS = ("conda-python-distributed", PROGRAMS / "exec-only")
IMPORT_TORCH = ("-c", "import torch")
#: A start of Python that no `.pth` file of the machine makes slower.
CLEAN_PYTHON = ("-I", "-S", "-c", "pass")
#: A loopback address for a name server that never answers.
SILENT_SERVER = "127.0.0.99"
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


def launch(session, *, recipe, srun, ranks):
    """Seconds until all ranks run Python, behind the launch script and behind plain assignments."""
    env = session.load(recipe)
    inside = ["singularity", "exec", "--bind", str(PROGRAMS), env["SIF"]] if recipe == CONTAINER else []
    while True:
        yield [tuple(_until_python(session, env, [*srun, *inside, each], ranks) for each in LAUNCHERS)]


def _until_python(session, env, command, ranks):
    """Seconds until the first line of Python in the last of the `ranks`; the nodes of the testbed share one clock."""
    start = time.time()
    lines = session.run([*command, "-c", "import time; print(time.time())"], env).split()
    if len(lines) != ranks:
        raise TestbedError(f"`{command[-1]}` started {len(lines)} ranks of {ranks}.")
    return max(map(float, lines)) - start


def instructions(session):
    """Instructions of a start of Python behind the launch script, and of the same start alone."""
    step = counts.step_variables(",".join(NODES[:2]), NODES[:2], tasks_per_node=2, rank=0)
    env = {**session.load(VENV), **step, "TMPDIR": str(session.scratch)}
    while True:
        commands = ([each, *CLEAN_PYTHON] for each in ("conda-python-distributed", "python"))
        yield [tuple(counts.count_instructions(session, env, command) for command in commands)]


def large_world(session):
    """Instructions of the launch script on the last rank of a large world that never ran, and of one node."""
    loaded = session.load(VENV)
    worlds = counts.scattered(4096), ("nid000001", ["nid000001"])
    steps = [counts.step_variables(*world, tasks_per_node=RANKS, rank=len(world[1]) * RANKS - 1) for world in worlds]
    command = ["conda-python-distributed", "--dry-run"]
    while True:
        yield [tuple(counts.count_instructions(session, {**loaded, **step}, command) for step in steps)]


def cpu(session):
    """The CPU time of two ranks: by the launch script, by torchrun, and by plain assignments."""
    env = session.load(VENV)
    two, one = (*ONE_NODE, "-n2"), (*ONE_NODE, "-n1", "--cpus-per-task=2")
    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2")
    job = PROGRAMS / "all_reduce.py"
    while True:
        script = sum(cpu_of_tasks(session, env, two, [LAUNCHERS[0], job], tasks=2))
        elastic = sum(cpu_of_tasks(session, env, one, [*torchrun, job], tasks=1))
        plain = sum(cpu_of_tasks(session, env, two, [LAUNCHERS[1], job], tasks=2))
        yield (script, plain), (elastic, plain)


def cpu_of_tasks(session, env, srun, command, *, tasks):
    """The CPU seconds of each task, with all that it starts."""
    # sys.executable, because the first Python on PATH may be the image's
    seconds = find_reports(session.run([*srun, sys.executable, PROGRAMS / "cpu_seconds.py", *command], env))
    if len(seconds) != tasks:  # a side without one of its tasks would seem cheap
        raise TestbedError(f"{len(seconds)} tasks of {tasks} reported their CPU seconds.")
    return seconds


def dead_dns(session):
    """The time of a job where the name server does not answer, and where no server is asked."""
    env = {**session.load(VENV), "SILENT_SERVER": SILENT_SERVER}
    job = ("conda-python-distributed", PROGRAMS / "all_reduce.py")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        try:
            silent.bind((SILENT_SERVER, 53))
        except PermissionError:
            raise NotMeasurable("only root can measure it") from None
        while True:
            kinds = ("names", "addresses")
            yield [tuple(session.time([*TWO_RANKS, PROGRAMS / "dead-dns", kind, *job], env) for kind in kinds)]


def import_once(session):
    """Seconds of `import torch` by one process, in the image and on the host."""
    image, host = session.load(CONTAINER), session.load(VENV)
    inside = ["singularity", "exec", image["SIF"]]
    while True:
        a = session.time([*inside, "python", *IMPORT_TORCH], image)
        yield [(a, session.time(["python", *IMPORT_TORCH], host))]


def import_by_ranks(session, prefix=()):
    """CPU seconds per rank of 8 ranks on one node that import torch, from the image and from the host's files."""
    image, host = session.load(CONTAINER), session.load(VENV)
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

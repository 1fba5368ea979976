"""What is compared with what; `run` measures every entry of `COMPARISONS` in turn.

Each `prepare` function takes a Session and returns the two sides, A and B: functions without arguments that
do one thing once and return what it took: seconds, or whatever the unit of its entry is.
"""

import os
import re
import shutil
import socket
import sys
import time
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from testbed.layout import NODES, TestbedError
from testbed.recipes import CONTAINER, DATASET, VENV, module

from benchmarks.instructions import instructions_of
from benchmarks.metadata import calls_of
from benchmarks.steps import step_variables

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
LOCK = TREE / "easyconfigs" / "p" / "PyTorch" / "PyTorch-2.13.0-cpu.txt"
DEFINITION = LOCK.with_suffix(".def")
TRAINING = TREE / "payload" / "mnist_ddp.py"
#: What `eb` installs from, and makes the module of.
SOURCES = ("bin", "easyblocks", "easyconfigs", "modulefiles", "payload", "runscripts")

#: More ranks than the testbed's nodes have cores between them, as they are one machine.
FOUR_RANKS = ("srun", "-N2", "--ntasks-per-node=2")
#: A core for each rank: with fewer CPUs per task Slurm would bind both to the first core of their nodes, which
#: is the same one.
TWO_RANKS = ("srun", "-N2", "--ntasks-per-node=1", "--cpus-per-task=2")
#: The node that `exec-only` takes for the master.
ONE_NODE = ("srun", "-N1", f"--nodelist={NODES[0]}")
#: As many ranks as the GPUs of a LUMI-G node, more than the testbed's nodes have cores.
NODE_OF_RANKS = (*ONE_NODE, "-n8", "--overcommit")
RANKS = 8
#: A loopback address of its own for a name server that never answers.
SILENT_SERVER = "127.0.0.99"
#: Images of an epoch of MNIST, and epochs after which mnist_ddp.py names 99 % of the test images rightly.
TRAINING_IMAGES = 60000
EPOCHS_TO_99 = 2
#: Packings of an image beside the recipes' own, as options of mksquashfs.
PACKINGS = {
    "gzip": "-comp gzip",
    "zstd": "-comp zstd -Xcompression-level 3",
    "lz4": "-comp lz4",
    "none": "-noI -noD -noF -noX",
}
#: Loads in a row that make one measurement: a single one is as short as the noise.
LOADS = 20


class Comparison(NamedTuple):
    """A against B.

    `name`       what `--only` selects it by
    `what`       the row's title
    `sides`      what exactly A and B are
    `recipes`    what has to be installed
    `container`  whether it needs a container runtime
    `prepare`    Session -> the functions that measure A and B
    `pairs`      how many pairs make a steady median
    `estimate`   seconds that one pair takes on two cores
    `target`     the ratio that this tree promises to stay below, if it does
    `anchor`     what others reach
    `unit`       what A and B are measured in, one of `table.UNITS`
    `packages`   which optional packages of the testbed it needs
    `root`       whether only root can measure it
    `warm_up`    whether a first pair is discarded, as files have to come into memory
    """

    name: str
    what: str
    sides: str
    recipes: tuple
    container: bool
    prepare: Callable
    pairs: int
    estimate: float
    target: Optional[float] = None
    anchor: str = ""
    unit: str = "seconds"
    packages: tuple = ()
    root: bool = False
    warm_up: bool = True


def launch_on_host(session):
    """The launch script against plain assignments, both with the venv's Python, two ranks on a core."""
    return launch(session, FOUR_RANKS, ranks=4)


def launch_on_cores(session):
    """The same with one rank on a core."""
    return launch(session, TWO_RANKS, ranks=2)


def launch(session, srun, ranks):
    """The launch script against plain assignments behind `srun`, both with the venv's Python."""
    env = session.environment(f"module load {module(VENV)}")
    return (
        lambda: until_python(session, env, [*srun, "conda-python-distributed"], ranks),
        lambda: until_python(session, env, [*srun, HERE / "exec-only"], ranks),
    )


def launch_in_image(session):
    """The launch script against plain assignments, both with the image's Python."""
    env = session.environment(f"module load {module(CONTAINER)}")
    inside = [*FOUR_RANKS, "singularity", "exec", "--bind", f"{HERE}/exec-only:/exec-only", env["SIF"]]
    return (
        lambda: until_python(session, env, [*inside, "conda-python-distributed"], 4),
        lambda: until_python(session, env, [*inside, "/exec-only"], 4),
    )


def until_python(session, env, launch, ranks):
    """Seconds from the start of `launch` to the first line of Python in the last of its `ranks`.

    Clocks of several nodes would have to agree; here they are one clock.
    """
    start = time.time()
    output = session.run([*launch, "-c", "import time; print(time.time())"], env)
    lines = output.split()
    if len(lines) != ranks:
        raise TestbedError(f"`{launch[-1]}` started {len(lines)} ranks of {ranks}.")
    return max(map(float, lines)) - start


def launch_instructions(session):
    """What the launch script executes before Python starts, against a Python that does nothing."""
    nodes = NODES[:2]
    step = step_variables(node_list=",".join(nodes), nodes=nodes, tasks_per_node=2, rank=0)
    env = {**session.environment(f"module load {module(VENV)}"), **step, "TMPDIR": str(session.scratch)}

    def bare():
        return instructions_of(session, env, ["python", "-c", "pass"])

    return lambda: instructions_of(session, env, ["conda-python-distributed", "-c", "pass"]) - bare(), bare


def cpu_of_the_script(session):
    """All that two ranks with the launch script use of the CPUs, against plain assignments."""
    return cpu(session, [*ONE_NODE, "-n2"], ["conda-python-distributed"])


def cpu_of_torchrun(session):
    """The same with torchrun in place of srun and the launch script."""
    return cpu(session, [*ONE_NODE, "-n1", "--cpus-per-task=2"], ["torchrun", "--standalone", "--nproc-per-node=2"])


def cpu(session, srun, launch):
    """Two ranks started by `srun` and `launch`, against two with plain assignments."""
    env = session.environment(f"module load {module(VENV)}")
    return (
        lambda: cpu_seconds(session, env, srun, launch),
        lambda: cpu_seconds(session, env, [*ONE_NODE, "-n2"], [HERE / "exec-only"]),
    )


def cpu_seconds(session, env, srun, launch):
    """CPU seconds, in user mode and in the kernel, of the tasks of `srun` from start to end."""
    output = session.run([*srun, HERE / "cpu_seconds.py", *launch, HERE / "all_reduce.py"], env)
    return sum(float(line.split(":")[1]) for line in output.splitlines() if line.startswith("CPU seconds:"))


def dead_dns(session):
    """A 2-rank job where the name server does not answer, against one that asks no server."""
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind((SILENT_SERVER, 53))
    env = session.environment(f"module load {module(VENV)}")

    def seconds(kind):
        env["SILENT_SERVER"], _ = silent.getsockname()
        command = [*TWO_RANKS, HERE / "dead-dns", kind, "conda-python-distributed", HERE / "all_reduce.py"]
        return seconds_of(session, env, command)

    return lambda: seconds("names"), lambda: seconds("addresses")


def import_torch(session, packing=None):
    """`import torch` in the image against the same on the host, files in memory after the first pair.

    With `packing`, options of mksquashfs, the image is packed anew with them before.
    """
    image, host = (session.environment(f"module load {module(recipe)}") for recipe in (CONTAINER, VENV))
    sif = image["SIF"]
    if packing:
        sif = session.scratch / "packed.sif"
        settings = {"APPTAINER_MKSQUASHFS_ARGS": packing}
        session.run(["singularity", "--quiet", "build", "--force", sif, image["SIF"]], {**image, **settings})
    python = ["python", "-c", "import torch"]
    return (
        lambda: seconds_of(session, image, ["singularity", "exec", sif, *python]),
        lambda: seconds_of(session, host, python),
    )


def import_by_ranks(session):
    """CPU seconds per rank of `import torch` where each rank of a node mounts the image, against the host's."""

    def cpu_per_rank(recipe):
        env = session.environment(f"module load {module(recipe)}")
        # not by the first Python on PATH, which is the image's
        task = [sys.executable, HERE / "cpu_seconds.py", "conda-python-distributed", "-c", "import torch"]
        output = session.run([*NODE_OF_RANKS, *task], env)
        seconds = [float(line.split(":")[1]) for line in output.splitlines() if line.startswith("CPU seconds:")]
        if len(seconds) != RANKS:
            raise TestbedError(f"{len(seconds)} ranks of {RANKS} told their CPU seconds.")
        return sum(seconds) / RANKS

    return lambda: cpu_per_rank(CONTAINER), lambda: cpu_per_rank(VENV)


def metadata(session):
    """Calls per rank for files on shared file systems, where `import torch` reads an image and where it reads none."""
    shared = (session.layout.easybuild, Path.home())

    def calls_per_rank(recipe):
        env = session.environment(f"module load {module(recipe)}")
        command = ["conda-python-distributed", "-c", "import torch"]
        return calls_of(session, env, NODE_OF_RANKS, command, shared=shared, ranks=RANKS)

    return lambda: calls_per_rank(CONTAINER), lambda: calls_per_rank(VENV)


def load_container(session):
    """Loading the container module against loading an empty one."""
    return load(session, CONTAINER)


def load_venv(session):
    """Loading the venv module against loading an empty one."""
    return load(session, VENV)


def load(session, recipe):
    """`module load` as a user has it, with EasyBuild's modules and nothing loaded before."""
    directory = session.scratch / "modulefiles"
    directory.mkdir(exist_ok=True)
    (directory / "empty.lua").write_text("-- loads nothing\n")
    env = session.environment("module unload pytorch-easybuild", f"module use {session.layout.modules} {directory}")

    def loads(name):
        script = f"""
            source "$LMOD_PKG/init/bash"
            start=$EPOCHREALTIME
            for ((i = 0; i < {LOADS}; i++)); do (module load {name}) || exit 1; done
            echo "$start $EPOCHREALTIME" """
        start, end = session.run(["bash", "-c", script], env).split()
        return (float(end) - float(start)) / LOADS

    return lambda: loads(module(recipe)), lambda: loads("empty")


def install_venv(session):
    """`eb` against the same steps by hand, for the venv module."""
    return install(session, VENV, HERE / "install-by-hand", LOCK)


def install_image(session):
    """The same for the container module, with an image that both build."""
    return install(session, CONTAINER, HERE / "install-image-by-hand", DEFINITION, LOCK)


def install(session, recipe, by_hand, *sources):
    """`eb` against the same steps by hand: to one and the same place, fetched before, nothing there yet."""
    prefix, by_eb = session.scratch / "installation", session.scratch / "by-eb.lua"
    env = installing(session)
    wheels = session.layout.easybuild / "sources" / "p" / "PyTorch" / "wheels"

    def install_with(command):
        shutil.rmtree(prefix, ignore_errors=True)
        os.sync()  # the other side's files are not this side's burden
        return seconds_of(session, env, command)

    def with_eb():
        elapsed = install_with(rebuild_command(session, recipe))
        shutil.copy(f"{prefix}/modules/all/{module(recipe)}.lua", by_eb)
        return elapsed

    return with_eb, lambda: install_with([by_hand, TREE, prefix, module(recipe), by_eb, wheels, *sources])


def installing(session, *commands):
    """The variables of an `eb` or of the same by hand, after some shell `commands`."""
    temporary = session.scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**session.environment(*commands), "TMPDIR": str(temporary)}


def rebuild_command(session, recipe):
    """`eb --rebuild` to a place of its own."""
    places = {"installpath": "installation", "buildpath": "build", "repositorypath": "repository"}
    return ["eb", f"{recipe}.eb", "--rebuild", *(f"--{option}={session.scratch / to}" for option, to in places.items())]


def rebuild(session):
    """Seconds of `eb --rebuild` of the container module after a change of a runscript, against a new image as well."""
    return rebuild_measured_by(session, lambda install: install())


def rebuild_bytes(session):
    """The same in bytes that are written to the installation."""
    root = session.scratch / "installation" / "software" / module(CONTAINER)

    def files():
        return {status.st_ino: status.st_size for status in map(Path.lstat, root.rglob("*"))}

    def new_bytes(install):
        before = files()  # put aside, not removed, until the new ones are there: no inode is used twice
        install()
        return sum(size for inode, size in files().items() if inode not in before)

    return rebuild_measured_by(session, new_bytes)


def rebuild_measured_by(session, measure):
    """Both sides of a rebuild; `measure` gets a function that installs once and returns the seconds.

    The warm-up pair finds nothing there, and makes the first installation.
    """
    tree = session.scratch / "tree"
    for part in SOURCES:
        shutil.copytree(TREE / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    runscript = tree / "runscripts" / "get-master"
    load = ("module unload pytorch-easybuild", f"module use {tree}/modulefiles", "module load pytorch-easybuild")
    env = installing(session, *load)

    def installed(*options):
        with runscript.open("a") as script:
            script.write("# changed\n")
        return seconds_of(session, env, [*rebuild_command(session, CONTAINER), *options])

    return lambda: measure(installed), lambda: measure(lambda: installed("--force"))


def time_to_99(session):
    """Seconds of training until 99 % of the test images are right: mnist_ddp.py against the textbook's loop."""
    env = session.environment(f"module load {module(DATASET)} {module(VENV)}")
    our_seeds, textbook_seeds = count(), count()

    def ours():
        seconds = 0.0
        for seed in islice(our_seeds, 3):
            output = session.run(["python", TRAINING, "--epochs", EPOCHS_TO_99, "--seed", seed], env)
            seconds += number_after("training time: ", output)
            # a training that misses it is no shorter way: the next one's time is added
            if number_after("test accuracy: ", output) >= 99:
                return seconds
        raise TestbedError("mnist_ddp.py ended below 99 % three times in a row.")

    def textbook():
        command = ["python", HERE / "textbook_mnist.py", env["MNIST_ROOT"], "--seed", next(textbook_seeds)]
        return number_after("training time: ", session.run(command, env))

    return ours, textbook


def two_ranks(session):
    """Seconds for an epoch's images: of two ranks on two cores, and of two lone runs on them together."""
    env = {**session.environment(f"module load {module(DATASET)} {module(VENV)}"), "OMP_NUM_THREADS": "1"}
    command = [TRAINING, "--epochs", "1", "--batch-per-rank", "256"]

    def seconds_per_epoch(launch, runs):
        output = session.run([*ONE_NODE, "-n2", launch, "-u", *command], env)
        rates = [float(rate) for rate in re.findall(r"images/s (\d+)", output)]
        if len(rates) != runs:
            raise TestbedError(f"`{launch}` told the speed of {len(rates)} runs, not of {runs}.")
        return TRAINING_IMAGES / sum(rates)

    return lambda: seconds_per_epoch("conda-python-distributed", 1), lambda: seconds_per_epoch("conda-python-simple", 2)


def number_after(label, output):
    """The number behind `label` at the start of one of the lines of `output`."""
    return float(re.search(rf"^{label}([0-9.]+)", output, re.MULTILINE)[1])


def seconds_of(session, env, command):
    """Seconds that `command` takes from start to end."""
    start = time.monotonic()
    session.run(command, env)
    return time.monotonic() - start


COMPARISONS = (
    Comparison(
        name="launch-host",
        what="launch 4 ranks on 2 nodes, venv module",
        sides="seconds from `srun -N2 --ntasks-per-node=2 conda-python-distributed` to the first line of Python in "
        "the last rank, against the same with `benchmarks/exec-only` in its place: plain assignments, then Python; "
        "the testbed's nodes are one machine, so that ranks of two nodes share a core",
        recipes=(VENV,),
        container=False,
        prepare=launch_on_host,
        pairs=21,
        estimate=0.3,
        target=1.2,
        anchor="LUMI's own script: 28 (4.2 s against 0.15 s)",
    ),
    Comparison(
        name="launch-core",
        what="launch 2 ranks on 2 nodes, a core for each, venv module",
        sides="as `launch-host`, with `srun -N2 --ntasks-per-node=1 --cpus-per-task=2`, so that no ranks share a core",
        recipes=(VENV,),
        container=False,
        prepare=launch_on_cores,
        pairs=21,
        estimate=0.3,
        target=1.2,
    ),
    Comparison(
        name="launch-image",
        what="launch 4 ranks on 2 nodes, inside the image",
        sides="the two sides of `launch-host` behind `singularity exec $SIF`",
        recipes=(CONTAINER,),
        container=True,
        prepare=launch_in_image,
        pairs=15,
        estimate=1,
        target=1.2,
        anchor="LUMI's own script: 28 (4.2 s against 0.15 s)",
    ),
    Comparison(
        name="instructions",
        what="instructions of the launch script, against those of one `python -c pass`",
        sides="bash and the bare Python before yours: `conda-python-distributed -c pass` less `python -c pass`, with "
        "a step's variables but without srun, against `python -c pass` of the venv; counted by valgrind",
        recipes=(VENV,),
        container=False,
        prepare=launch_instructions,
        pairs=2,
        estimate=8,
        target=1.0,
        unit="instructions",
        packages=("valgrind",),
    ),
    Comparison(
        name="cpu",
        what="CPU time of a 2-rank job with one all-reduce, against plain assignments",
        sides="CPU seconds of both tasks of `srun -N1 -n2 conda-python-distributed benchmarks/all_reduce.py` (`import "
        "torch`, gloo, one all-reduce), against the same with `benchmarks/exec-only`",
        recipes=(VENV,),
        container=False,
        prepare=cpu_of_the_script,
        pairs=7,
        estimate=6,
        target=1.05,
    ),
    Comparison(
        name="cpu-torchrun",
        what="CPU time of the same job under torchrun, against plain assignments",
        sides="CPU seconds of `torchrun --standalone --nproc-per-node=2` as the one task of srun, its workers "
        "included, against B of `cpu`",
        recipes=(VENV,),
        container=False,
        prepare=cpu_of_torchrun,
        pairs=7,
        estimate=9,
    ),
    Comparison(
        name="dead-dns",
        what="2-rank job with one all-reduce where the name server does not answer, against no server asked",
        sides="seconds of `srun -N2 --ntasks-per-node=1 conda-python-distributed benchmarks/all_reduce.py`, both with "
        "`benchmarks/dead-dns`: with a silent name server, and with every address in /etc/hosts",
        recipes=(VENV,),
        container=False,
        prepare=dead_dns,
        pairs=7,
        estimate=6,
        target=1.5,
        anchor="torch by itself: 5 s or 10 s more",
        root=True,
    ),
    Comparison(
        name="import",
        what="`import torch` in the image, against the host",
        sides="`singularity exec $SIF python -c 'import torch'` against `python -c 'import torch'` of the venv "
        "module, from start to end, files in memory",
        recipes=(CONTAINER, VENV),
        container=True,
        prepare=import_torch,
        pairs=31,
        estimate=4,
        target=1.4,
        anchor="image with Apptainer's default, gzip: 1.95",
    ),
    *(
        Comparison(
            name=f"import-{name}",
            what=f"the same with the image in another packing, {name}",
            sides=f"as `import`, the image packed anew with `{packing}`",
            recipes=(CONTAINER, VENV),
            container=True,
            prepare=partial(import_torch, packing=packing),
            pairs=9,
            estimate=7,
        )
        for name, packing in PACKINGS.items()
    ),
    Comparison(
        name="image-ranks",
        what="CPU time per rank of `import torch` by 8 ranks on a node, a mount of the image each, against the host",
        sides="CPU seconds of `srun -N1 -n8 --overcommit conda-python-distributed -c 'import torch'` with the "
        "container module, mounting included, against the same with the venv module",
        recipes=(CONTAINER, VENV),
        container=True,
        prepare=import_by_ranks,
        pairs=7,
        estimate=25,
    ),
    Comparison(
        name="metadata",
        what="calls per rank for files on shared file systems, of the same in the image, against the host",
        sides="calls that name a file (`strace -e trace=%file`) in the installations and the home directory, of the "
        "ranks of `image-ranks` and what they start; without those for the user's own directory, which Python looks "
        "into at every import",
        recipes=(CONTAINER, VENV),
        container=True,
        prepare=metadata,
        pairs=3,
        estimate=60,
        target=0.01,
        unit="calls",
        packages=("strace",),
    ),
    Comparison(
        name="load-image",
        what="`module load` of the container module, against an empty one",
        sides=f"mean of {LOADS} times `(module load ...)` in one shell, nothing loaded before",
        recipes=(CONTAINER,),
        container=False,
        prepare=load_container,
        pairs=11,
        estimate=2,
        target=1.3,
    ),
    Comparison(
        name="load-venv",
        what="`module load` of the venv module, against an empty one",
        sides="the same",
        recipes=(VENV,),
        container=False,
        prepare=load_venv,
        pairs=11,
        estimate=2,
        target=1.3,
    ),
    Comparison(
        name="install",
        what="`eb` for the venv module, against the same by hand",
        sides="`eb --rebuild` to an empty place against `benchmarks/install-by-hand`, wheels fetched before",
        recipes=(VENV,),
        container=False,
        prepare=install_venv,
        pairs=7,
        estimate=60,
        target=1.15,
    ),
    Comparison(
        name="install-image",
        what="`eb` for the container module, against the same by hand",
        sides="`eb --rebuild` to an empty place against `benchmarks/install-image-by-hand`: Debian packages from the "
        "host's archives, wheels fetched before, one image built with the same compression",
        recipes=(CONTAINER,),
        container=True,
        prepare=install_image,
        pairs=7,
        estimate=150,
        target=1.15,
    ),
    Comparison(
        name="rebuild",
        what="`eb --rebuild` of the container module after a change of a runscript, against a new image as well",
        sides="`eb --rebuild` where the image is the same and is kept, against `eb --rebuild --force`, which builds it",
        recipes=(CONTAINER,),
        container=True,
        prepare=rebuild,
        pairs=7,
        estimate=100,
        target=0.5,
    ),
    Comparison(
        name="rebuild-bytes",
        what="bytes written to the installation, of the same",
        sides="sizes of the files that were not there before: an image that is kept is a second name of the same file",
        recipes=(CONTAINER,),
        container=True,
        prepare=rebuild_bytes,
        pairs=1,
        estimate=100,
        target=0.01,
        unit="bytes",
    ),
    Comparison(
        name="time-to-99",
        what="training until 99 % of MNIST's test images are right, against a textbook's loop",
        sides="seconds in the training loop, two threads, without imports, reading files and evaluation: "
        f"`mnist_ddp.py --epochs {EPOCHS_TO_99}` (a run that ends below 99 % is followed by one with the next seed, "
        "whose time is added; the images are normalised once, before the clock starts), against "
        "`benchmarks/textbook_mnist.py`, which ends with the first epoch that reaches 99 %; another seed in every "
        "pair, without a pair to warm up, as the clock starts behind the imports",
        recipes=(DATASET, VENV),
        container=False,
        prepare=time_to_99,
        pairs=7,
        estimate=540,
        target=0.2,
        warm_up=False,
    ),
    Comparison(
        name="two-ranks",
        what="an epoch's images by two ranks on two cores, against two lone runs together",
        sides="seconds for 60,000 images by the images/s of `srun -N1 -n2 conda-python-distributed mnist_ddp.py "
        "--epochs 1 --batch-per-rank 256`, one thread and one core for each rank, against the sum of the two images/s "
        "of `srun -N1 -n2 conda-python-simple` of the same, two worlds of one; 1.11 is nine tenths of the speed",
        recipes=(DATASET, VENV),
        container=False,
        prepare=two_ranks,
        pairs=11,
        estimate=25,
        target=1.11,
    ),
)

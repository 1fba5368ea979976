"""What is compared with what; `run` measures every entry of `COMPARISONS` in turn.

Each `prepare` function takes a Session and returns the two sides, A and B: functions without arguments that
do one thing once and return the seconds it took.
"""

import os
import shutil
import time
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from testbed.layout import TestbedError

HERE = Path(__file__).resolve().parent
TREE = HERE.parent
CONTAINER = "PyTorch/2.13.0-cpu-singularity"
VENV = "PyTorch/2.13.0-cpu-venv"
LOCK = TREE / "easyconfigs" / "p" / "PyTorch" / "PyTorch-2.13.0-cpu.txt"

RANKS = 4
SRUN = ("srun", "-N2", "--ntasks-per-node=2")
#: Loads in a row that make one measurement: a single one is as short as the noise.
LOADS = 20


class Comparison(NamedTuple):
    """A against B.

    `name`       what `--only` selects it by
    `what`       the row's title
    `sides`      what exactly A and B are
    `modules`    modules that have to be installed
    `container`  whether it needs a container runtime
    `prepare`    Session -> the functions that measure A and B
    `pairs`      how many pairs make a steady median
    `estimate`   seconds that one pair takes on two cores
    `target`     the ratio that this tree promises to stay below, if it does
    `anchor`     what others reach
    """

    name: str
    what: str
    sides: str
    modules: tuple
    container: bool
    prepare: Callable
    pairs: int
    estimate: float
    target: Optional[float] = None
    anchor: str = ""


def launch_on_host(session):
    """The launch script against plain assignments, both with the venv's Python."""
    env = session.environment(f"module load {VENV}")
    return (
        lambda: until_python(session, env, [*SRUN, "conda-python-distributed"]),
        lambda: until_python(session, env, [*SRUN, HERE / "exec-only"]),
    )


def launch_in_image(session):
    """The launch script against plain assignments, both with the image's Python."""
    env = session.environment(f"module load {CONTAINER}")
    inside = [*SRUN, "singularity", "exec", "--bind", f"{HERE}/exec-only:/exec-only", env["SIF"]]
    return (
        lambda: until_python(session, env, [*inside, "conda-python-distributed"]),
        lambda: until_python(session, env, [*inside, "/exec-only"]),
    )


def until_python(session, env, launch):
    """Seconds from the start of `launch` to the first line of Python in its last rank.

    Clocks of several nodes would have to agree; here they are one clock.
    """
    start = time.time()
    output = session.run([*launch, "-c", "import time; print(time.time())"], env)
    lines = output.split()
    if len(lines) != RANKS:
        raise TestbedError(f"`{launch[-1]}` started {len(lines)} ranks of {RANKS}.")
    return max(map(float, lines)) - start


def import_torch(session):
    """`import torch` in the image against the same on the host, files in memory after the first pair."""
    image, host = (session.environment(f"module load {module}") for module in (CONTAINER, VENV))
    python = ["python", "-c", "import torch"]
    return (
        lambda: seconds_of(session, image, ["singularity", "exec", image["SIF"], *python]),
        lambda: seconds_of(session, host, python),
    )


def load_container(session):
    """Loading the container module against loading an empty one."""
    return load(session, CONTAINER)


def load_venv(session):
    """Loading the venv module against loading an empty one."""
    return load(session, VENV)


def load(session, module):
    """`module load` as a user has it, with EasyBuild's modules and nothing loaded before."""
    directory = session.scratch / "modulefiles"
    directory.mkdir(exist_ok=True)
    (directory / "empty.lua").write_text("-- loads nothing\n")
    env = session.environment(
        "module unload pytorch-easybuild", f"module use {session.layout.modules} {directory}"
    )

    def loads(name):
        script = f"""
            source "$LMOD_PKG/init/bash"
            start=$EPOCHREALTIME
            for ((i = 0; i < {LOADS}; i++)); do (module load {name}) || exit 1; done
            echo "$start $EPOCHREALTIME" """
        start, end = session.run(["bash", "-c", script], env).split()
        return (float(end) - float(start)) / LOADS

    return lambda: loads(module), lambda: loads("empty")


def install(session):
    """`eb` against the same steps by hand, to the same place, wheels fetched before."""
    prefix, keep = session.scratch / "installation", session.scratch / "by-eb.lua"
    temporary = session.scratch / "tmp"
    temporary.mkdir()
    env = {**session.environment(), "TMPDIR": str(temporary)}
    modulefile = modulefile_of(prefix / "modules" / "all", VENV)
    wheels = session.layout.easybuild / "sources" / "p" / "PyTorch" / "wheels"
    eb = ["eb", f"{VENV.replace('/', '-')}.eb", "--rebuild", f"--installpath={prefix}"]
    eb += [f"--buildpath={session.scratch}/build", f"--repositorypath={session.scratch}/repository"]

    def fresh(command):
        shutil.rmtree(prefix, ignore_errors=True)
        os.sync()  # what the other side left to write
        return seconds_of(session, env, command)
    return eb, env

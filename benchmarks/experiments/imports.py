"""`import torch` from an image or a packed venv, against the same from the host's file system."""

import contextlib
import os
import shutil
import sys
from functools import partial
from pathlib import Path

from benchmarks.comparison import PROGRAMS, TREE, Comparison, compare
from benchmarks.experiments.steps import NODE_OF_RANKS, RANKS
from benchmarks.programs.cpu_seconds import find_reports
from testbed.layout import TestbedError
from testbed.recipes import CONTAINER, VENV, module

IMPORT_TORCH = ("python", "-c", "import torch")
#: Packs the installation in its argument as its recipe would, with the recipe's default options.
PACK = """
import os, sys
from easybuild.tools.options import set_up_configuration
blocks = os.environ["PYTHONPATH"] + "/*.py"
set_up_configuration(["--allow-use-as-root-and-accept-consequences", "--include-easyblocks=" + blocks], silent=True)
from pytorch_install.packing import pack
pack(sys.argv[1], "-comp lz4 -no-fragments", os.cpu_count())
"""


def import_torch(session):
    """One process on each side."""
    image, host = (session.environment(f"module load {module(recipe)}") for recipe in (CONTAINER, VENV))
    return (
        lambda: session.time(["singularity", "exec", image["SIF"], *IMPORT_TORCH], image),
        lambda: session.time(IMPORT_TORCH, host),
    )


def import_by_ranks(session, prefix=()):
    """CPU seconds per rank of 8 ranks on one node that import torch, from the image or from the host's files."""
    image, host = (session.environment(f"module load {module(recipe)}") for recipe in (CONTAINER, VENV))
    return lambda: cpu_per_rank(session, image, prefix), lambda: cpu_per_rank(session, host)


def import_packed(session):
    """The same from the venv module packed as its recipe would, or unpacked."""
    env = session.environment(f"module load {module(VENV)}")
    with packed_venv(session) as written:
        packed = shutil.copy(written, session.scratch)
    return lambda: cpu_per_rank(session, {**env, "PYTORCH_PACKED": packed}), lambda: cpu_per_rank(session, env)


@contextlib.contextmanager
def packed_venv(session):
    """Yield the file that a recipe with `packed = True` adds to the venv module; it is there during the block."""
    root = Path(session.environment(f"module load {module(VENV)}")["EBROOTPYTORCH"])
    written = [
        root / "venv.squashfs",
        root / "provenance" / "packed.json",
        root / "runscripts" / "pytorch_stage" / "sources.json",
    ]
    env = {**os.environ, "PYTHONPATH": str(TREE / "easyblocks"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        session.run([session.layout.eb_venv / "bin" / "python", "-c", PACK, root], env)
        yield written[0]
    finally:
        for file in written:
            file.unlink(missing_ok=True)


def cpu_per_rank(session, env, prefix=()):
    """CPU seconds of a rank and of all that it starts."""
    # sys.executable, because the first Python on PATH is the image's
    task = [sys.executable, PROGRAMS / "cpu_seconds.py", *prefix, "conda-python-distributed", "-c", "import torch"]
    seconds = find_reports(session.run([*NODE_OF_RANKS, *task], env))
    if len(seconds) != RANKS:
        raise TestbedError(f"{len(seconds)} ranks of {RANKS} reported their CPU seconds.")
    return sum(seconds) / RANKS


#: Runs a command in the image as where an administrator lets the ranks of a node share one mount.
IN_SHARED_IMAGE = """
configuration=$(singularity buildcfg | sed -n 's/^APPTAINER_CONF_FILE=//p')
shared=$(sed 's/^shared loop devices = no/shared loop devices = yes/' "$configuration") || exit
exec singularity --config <(echo "$shared") exec "$SIF" "$@"
"""
HOST = "`python -c 'import torch'` of the venv module, from start to end"

EXPERIMENTS = (
    compare(
        Comparison(
            name="import",
            title="`import torch` in the image, against the host",
            a="`singularity exec $SIF python -c 'import torch'`, from start to end, files in memory",
            b=HOST,
            target=1.4,
            reference="an image with Apptainer's default packing, gzip: 1.95",
        ),
        import_torch,
        rounds=21,
        seconds=4,
        recipes=(CONTAINER, VENV),
        container=True,
    ),
    compare(
        Comparison(
            name="image-ranks",
            title="CPU time per rank of `import torch` by 8 ranks on a node, against the host",
            a="CPU seconds of `srun -N1 -n8 --overcommit conda-python-distributed -c 'import torch'`, divided by 8, "
            "with the container module: each rank mounts the image",
            b="the same with the venv module",
        ),
        import_by_ranks,
        rounds=7,
        seconds=20,
        recipes=(CONTAINER, VENV),
        container=True,
    ),
    compare(
        Comparison(
            name="shared-ranks",
            title="CPU time per rank of the same from an image that is mounted once per node, against the host",
            a="A of `image-ranks` as `singularity exec $SIF conda-python-distributed`, with `shared loop devices = "
            "yes` in `apptainer.conf`",
            b="B of `image-ranks`",
            target=1.2,
        ),
        partial(import_by_ranks, prefix=("bash", "-c", IN_SHARED_IMAGE, "bash")),
        rounds=7,
        seconds=20,
        recipes=(CONTAINER, VENV),
        container=True,
    ),
    compare(
        Comparison(
            name="packed-ranks",
            title="CPU time per rank of the same from a packed venv, against the host",
            a="B of `image-ranks` with `packed = True` in the recipe; the CPU seconds include squashfuse's",
            b="B of `image-ranks`",
            target=1.2,
        ),
        import_packed,
        rounds=7,
        seconds=20,
        recipes=(VENV,),
        container=True,
    ),
)

"""`eb` for the container module: from scratch, against a script of the same steps, and after a change of one file."""

import os
import shutil
from pathlib import Path

from benchmarks.comparison import PROGRAMS, TREE, Comparison, Experiment
from benchmarks.experiments.install import Site
from testbed.recipes import CONTAINER, INGREDIENTS, LOCK, module

DEFINITION = LOCK.with_suffix(".def")
#: The parts of the tree that an installation is made from.
PARTS = {pattern.split("/")[0] for pattern in INGREDIENTS}


def install_image(session):
    """A round: an installation from scratch, another one after a change of a runscript, and one by hand.

    `eb` installs from a copy of the tree, in which the runscript can be changed. One installation comes before the
    first round: it downloads the wheels, reads them into memory, and bootstraps the base system of all others.
    """
    tree = copy_tree(session.scratch / "tree")
    site = Site(session, CONTAINER, variables(session, tree))
    root = site.prefix / "software" / module(CONTAINER)
    site.eb("--fetch")
    site.eb_from_scratch()

    def measure_round():
        from_scratch = site.eb_from_scratch()
        before = sizes(root)
        append_comment(tree / "runscripts" / "get-master")
        again = site.eb()
        new_bytes = sum(size for inode, size in sizes(root).items() if inode not in before)
        by_hand = site.by_hand(PROGRAMS / "install-image-by-hand", DEFINITION, LOCK)
        return {
            "install-image": (from_scratch, by_hand),
            "rebuild": (again, from_scratch),
            "rebuild-bytes": (new_bytes, sum(before.values())),
        }

    return measure_round


def copy_tree(copy):
    """Copy the parts of the tree that `eb` reads to `copy`."""
    for part in PARTS:
        shutil.copytree(TREE / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return copy


def variables(session, tree):
    """The variables of an `eb` with the recipes of `tree`, and with `bootstrap-once` instead of mmdebstrap."""
    bootstrap = ("module unload pytorch-easybuild", f"module use {tree}/modulefiles", "module load pytorch-easybuild")
    env = session.environment(*bootstrap)
    commands = session.scratch / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "mmdebstrap").symlink_to(PROGRAMS / "bootstrap-once")
    return {**env, "PATH": os.pathsep.join([str(commands), env["PATH"]]), "BASE_SYSTEM": f"{session.scratch}/base.tar"}


def sizes(root):
    """The size of every file below `root`, by its inode: an image that is kept is the same inode afterwards.

    `eb` keeps the old files until the new ones are there, so no inode is used twice.
    """
    return {status.st_ino: status.st_size for status in map(Path.lstat, root.rglob("*"))}


def append_comment(script):
    """Change a script in a way that changes nothing else."""
    with script.open("a") as file:
        file.write("# changed\n")


EXPERIMENTS = (
    Experiment(
        (
            Comparison(
                name="install-image",
                title="`eb` for the container module, against a script of the same steps",
                a="`eb --rebuild` to an empty directory, wheels downloaded before and in memory, Debian's base system "
                "bootstrapped before (`bootstrap-once` replaces mmdebstrap on both sides)",
                b="`install-image-by-hand`: an image from the same definition, wheels and packing; copies, "
                "compilation, the module, and the same checks",
                target=1.15,
            ),
            Comparison(
                name="rebuild",
                title="`eb --rebuild` of the container module after a change of a runscript, against a new image",
                a="`eb --rebuild` where the image is up to date and is kept",
                b="A of `install-image`",
                target=0.5,
            ),
            Comparison(
                name="rebuild-bytes",
                title="bytes written to the installation by the same `eb`, against a new image",
                a="sizes of the files that A of `rebuild` makes; an image that is kept is the same file",
                b="sizes of all files that A of `install-image` makes",
                target=0.01,
                unit="bytes",
            ),
        ),
        install_image,
        rounds=7,
        seconds=135,
        preparation=100,
        warm_up=False,
        recipes=(CONTAINER,),
        container=True,
    ),
)

"""Rows on `eb`: installations from scratch against scripts of the same steps, and after a change of one file."""

import os
import shutil

from benchmarks.session import PROGRAMS, TREE
from testbed.recipes import CONTAINER, INGREDIENTS, LOCK, VENV, module

#: The parts of the tree that an installation is made from.
PARTS = {pattern.split("/")[0] for pattern in INGREDIENTS}


class Site:
    """An empty place that `eb`, or a script instead of it, installs a recipe to; sources are downloaded before.

    `prefix`  EasyBuild's installation path, removed before each installation from scratch
    `env`     the variables of either command
    """

    def __init__(self, session, recipe, env):
        temporary = session.scratch / "tmp"
        temporary.mkdir()
        self.session = session
        self.recipe = recipe
        self.env = {**env, "TMPDIR": str(temporary)}
        self.prefix = session.scratch / "installation"
        self.modulefile = session.scratch / "by-eb.lua"
        self.eb("--fetch")
        self.eb_from_scratch()  # reads the wheels into memory, and bootstraps the base system of all others

    def eb(self, *options):
        """Seconds of `eb --rebuild` of the recipe to this place."""
        places = [f"--{name}path={self.session.scratch / name}" for name in ("build", "repository")]
        places.append(f"--installpath={self.prefix}")
        return self.session.time(["eb", f"{self.recipe}.eb", "--rebuild", *places, *options], self.env)

    def clear(self):
        """Remove what is installed here, and write the other side's files to disk before this side's clock starts."""
        shutil.rmtree(self.prefix, ignore_errors=True)
        os.sync()

    def eb_from_scratch(self):
        """Seconds of `eb` where nothing is installed; keeps the module for `by_hand`."""
        self.clear()
        seconds = self.eb()
        shutil.copy(self.prefix / "modules" / "all" / f"{module(self.recipe)}.lua", self.modulefile)
        return seconds

    def by_hand(self, *sources):
        """Seconds of the script that installs the same where nothing is installed."""
        self.clear()
        wheels = self.session.layout.easybuild / "sources" / "p" / "PyTorch" / "wheels"
        arguments = [TREE, self.prefix, module(self.recipe), self.modulefile, wheels, *sources]
        return self.session.time([PROGRAMS / "install-by-hand", *arguments], self.env)


def install_venv(session):
    """Seconds of `eb` for the venv module, and of the script."""
    site = Site(session, VENV, session.environment())
    while True:
        yield [(site.eb_from_scratch(), site.by_hand(LOCK))]


def install_image(session):
    """An installation from scratch, another one after a change of a runscript, and one by hand.

    `eb` installs from a copy of the tree, in which the runscript can be changed.
    """
    tree = session.scratch / "tree"
    for part in PARTS:
        shutil.copytree(TREE / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
    site = Site(session, CONTAINER, variables(session, tree))
    while True:
        from_scratch = site.eb_from_scratch()
        with (tree / "runscripts" / "get-master").open("a") as file:
            file.write("# changed\n")
        again = site.eb()
        by_hand = site.by_hand(LOCK, LOCK.with_suffix(".def"))
        yield (from_scratch, by_hand), (again, from_scratch)


def variables(session, tree):
    """The variables of an `eb` with the recipes of `tree`, and with `bootstrap-once` instead of mmdebstrap."""
    bootstrap = ("module unload pytorch-easybuild", f"module use {tree}/modulefiles", "module load pytorch-easybuild")
    env = session.environment(*bootstrap)
    commands = session.scratch / "bin"
    commands.mkdir()
    (commands / "mmdebstrap").symlink_to(PROGRAMS / "bootstrap-once")
    return {**env, "PATH": os.pathsep.join([str(commands), env["PATH"]]), "BASE_SYSTEM": f"{session.scratch}/base.tar"}

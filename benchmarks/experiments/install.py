"""`eb` for the venv module, against the same steps in a shell script."""

import os
import shutil

from benchmarks.comparison import PROGRAMS, TREE, Comparison, compare
from testbed.recipes import LOCK, VENV, module


class Site:
    """An empty place that `eb`, or a script instead of it, installs a recipe to; sources are downloaded before.

    `prefix`      EasyBuild's installation path, removed before each installation from scratch
    `env`         the variables of either command
    """

    def __init__(self, session, recipe, env):
        temporary = session.scratch / "tmp"
        temporary.mkdir(exist_ok=True)
        self.session = session
        self.recipe = recipe
        self.env = {**env, "TMPDIR": str(temporary)}
        self.prefix = session.scratch / "installation"
        self.modulefile = session.scratch / "by-eb.lua"
        self.wheels = session.layout.easybuild / "sources" / "p" / "PyTorch" / "wheels"

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

    def by_hand(self, script, *sources):
        """Seconds of a script that installs the same where nothing is installed."""
        self.clear()
        arguments = [TREE, self.prefix, module(self.recipe), self.modulefile, self.wheels, *sources]
        return self.session.time([script, *arguments], self.env)


def install_venv(session):
    """Both sides, after one installation that downloads the wheels and reads them into memory."""
    site = Site(session, VENV, session.environment())
    site.eb("--fetch")
    site.eb_from_scratch()
    return site.eb_from_scratch, lambda: site.by_hand(PROGRAMS / "install-by-hand", LOCK)


EXPERIMENTS = (
    compare(
        Comparison(
            name="install",
            title="`eb` for the venv module, against a script of the same steps",
            a="`eb --rebuild` to an empty directory, wheels downloaded before and in memory",
            b="`install-by-hand`: pip, copies, compilation, the module, and the same checks",
            target=1.15,
        ),
        install_venv,
        rounds=7,
        seconds=90,
        preparation=50,
        warm_up=False,
        recipes=(VENV,),
    ),
)

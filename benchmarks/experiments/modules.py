"""`module load`, against a module that does nothing."""

from functools import partial

from benchmarks.comparison import Comparison, compare
from testbed.recipes import CONTAINER, VENV, module

#: Loads per measurement: a single one is as short as the noise.
LOADS = 20


def load(session, recipe):
    """The mean time of loading the recipe's module, and of an empty one, with EasyBuild's modules and none loaded."""
    directory = session.scratch / "modulefiles"
    directory.mkdir(exist_ok=True)
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

    return lambda: seconds_per_load(module(recipe)), lambda: seconds_per_load("empty")


EXPERIMENTS = tuple(
    compare(
        Comparison(
            name=name,
            title=f"`module load` of the {kind} module, against an empty one",
            a=f"mean of {LOADS} times `(module load {module(recipe)})` in one shell, no module loaded before",
            b="the same with an empty Lua module",
            target=1.3,
        ),
        partial(load, recipe=recipe),
        rounds=11,
        seconds=2,
        recipes=(recipe,),
    )
    for name, kind, recipe in (("load-image", "container", CONTAINER), ("load-venv", "venv", VENV))
)

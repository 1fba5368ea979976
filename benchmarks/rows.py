"""The rows of the table in words, from rows.ini, and how they are measured: `ROWS` and `EXPERIMENTS`."""

import configparser
from functools import partial
from pathlib import Path
from typing import Callable, NamedTuple, Optional

from benchmarks import installs, steps, trainings
from benchmarks.session import PROGRAMS
from testbed.recipes import CONTAINER, DATASET, VENV


class Row(NamedTuple):
    """A against B, in the words of a section of rows.ini, which explains the fields; `name` selects it (`--only`)."""

    name: str
    title: str
    a: str
    b: str
    target: Optional[float] = None
    reference: str = ""
    unit: str = "seconds"


class Experiment(NamedTuple):
    """Rows that are measured together, in rounds.

    `pairs`    Session -> a generator of rounds, each a pair (A, B) for each row
    `names`    of the rows that it fills
    `recipes`  modules that must be installed; the container module needs a container runtime
    `rounds`   number of rounds that count
    `warm_up`  whether a first round is discarded, because it reads files from disk
    """

    pairs: Callable
    names: tuple
    recipes: tuple = (VENV,)
    rounds: int = 7
    warm_up: bool = True


def read_rows(path):
    """The rows of a file by their names, in their order."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(path.read_text(encoding="utf-8"))
    rows = {}
    for name in parser.sections():
        words = {field: text.replace("\n", " ") for field, text in parser[name].items()}
        rows[name] = Row(name, **{**words, "target": parser[name].getfloat("target")})
    return rows


def launch(name, recipe, srun, program=steps.PRINT_TIME, *, ranks, rounds):
    """The Experiment of ranks that a module starts, until the last of them prints the time."""
    pairs = partial(steps.launch, recipe=recipe, srun=srun, program=program, ranks=ranks)
    return Experiment(pairs, (name,), (recipe,), rounds)


BOTH = (CONTAINER, VENV)
TRAINING = (DATASET, VENV)
FIRST_STEP = (PROGRAMS / "first_step.py",)
#: Every row that there can be.
ROWS = read_rows(Path(__file__).with_name("rows.ini"))
EXPERIMENTS = (
    launch("first-step", CONTAINER, steps.TWO_RANKS, FIRST_STEP, ranks=2, rounds=11),
    launch("first-step-8", CONTAINER, steps.NODE_OF_RANKS, FIRST_STEP, ranks=steps.RANKS, rounds=7),
    launch("launch-host", VENV, steps.FOUR_RANKS, ranks=4, rounds=21),
    launch("launch-image", CONTAINER, steps.FOUR_RANKS, ranks=4, rounds=15),
    Experiment(steps.instructions, ("instructions",), rounds=2, warm_up=False),
    Experiment(steps.large_world, ("large-world",), rounds=2, warm_up=False),
    Experiment(steps.cpu, ("cpu",)),
    Experiment(steps.import_once, ("import",), BOTH, rounds=21),
    Experiment(steps.import_by_ranks, ("image-ranks",), BOTH),
    Experiment(partial(steps.import_by_ranks, prefix=steps.IN_SHARED_IMAGE), ("shared-ranks",), BOTH),
    Experiment(steps.import_packed, ("packed-ranks",), BOTH),
    Experiment(steps.metadata, ("metadata",), BOTH, rounds=1, warm_up=False),
    Experiment(partial(steps.load, recipe=CONTAINER), ("load-image",), (CONTAINER,), rounds=11),
    Experiment(partial(steps.load, recipe=VENV), ("load-venv",), rounds=11),
    Experiment(installs.install_venv, ("install",), warm_up=False),
    Experiment(installs.install_image, ("install-image", "rebuild"), (CONTAINER,), warm_up=False),
    Experiment(trainings.time_to_99, ("time-to-99",), TRAINING, warm_up=False),
    Experiment(trainings.two_ranks, ("two-ranks",), TRAINING, rounds=11),
    Experiment(trainings.save, ("save",), TRAINING, warm_up=False),
)

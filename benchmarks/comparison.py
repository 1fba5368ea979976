"""The two types that describe a benchmark: a Comparison is a row of the table, an Experiment measures one or more."""

from pathlib import Path
from typing import Callable, NamedTuple, Optional

TREE = Path(__file__).resolve().parents[1]
#: Programs that an experiment runs as one of its sides, or in front of one.
PROGRAMS = Path(__file__).resolve().parent / "programs"


class Comparison(NamedTuple):
    """A against B: one row of the table.

    `name`       selects it (`--only`)
    `title`      what both sides do
    `a`, `b`     what each side is, in words
    `target`     largest ratio A / B that this tree promises, or None
    `reference`  a ratio that other software reaches, with its source
    `unit`       what A and B are measured in, a key of `table.UNITS`
    """

    name: str
    title: str
    a: str
    b: str
    target: Optional[float] = None
    reference: str = ""
    unit: str = "seconds"


class Experiment(NamedTuple):
    """Comparisons that are measured together, in rounds; sides that they share are measured once per round.

    `comparisons`  the rows that it fills
    `prepare`      Session -> a function that measures every side once and returns {name of a comparison: (A, B)}
    `rounds`       number of rounds that count
    `seconds`      duration of a round on two idle cores
    `preparation`  seconds that `prepare` takes
    `warm_up`      whether a first round is discarded, because it reads files from disk
    `recipes`      modules that must be installed
    `container`    whether it needs a container runtime
    `packages`     optional packages of the testbed that it needs
    `root`         whether only root can measure it
    """

    comparisons: tuple
    prepare: Callable
    rounds: int
    seconds: float
    recipes: tuple
    preparation: float = 0
    warm_up: bool = True
    container: bool = False
    packages: tuple = ()
    root: bool = False

    @property
    def names(self):
        """The names of its comparisons."""
        return tuple(comparison.name for comparison in self.comparisons)

    def expected_seconds(self, rounds=None):
        """Duration of the experiment on two idle cores, with another number of `rounds` if given."""
        return self.preparation + self.seconds * ((rounds or self.rounds) + self.warm_up)


def compare(comparison, prepare, **conditions):
    """The Experiment of one comparison: `prepare` takes a Session and returns the functions that measure A and B."""

    def prepare_round(session):
        measure_a, measure_b = prepare(session)
        return lambda: {comparison.name: (measure_a(), measure_b())}

    return Experiment((comparison,), prepare_round, **conditions)

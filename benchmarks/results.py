"""The results of a run, and the file that keeps those of docs/benchmarks.md."""

import json
from pathlib import Path
from statistics import median
from typing import NamedTuple

#: The results on the page, so that it can be written again without measuring.
RESULTS = Path(__file__).resolve().parent / "results.json"


class Ratio(NamedTuple):
    """Summary of a number of pairs (A, B).

    If the machine slows down for a minute, it slows both sides of a pair, and the median ignores a pair in which only
    one side was disturbed. So the ratio is reproducible where the seconds are not.

    `a`, `b`       medians of the two sides, in their unit
    `low`, `high`  smallest and largest ratio of a single pair
    `pairs`        number of pairs
    `run`          a sentence on the machine, the tree and the duration of the run
    """

    a: float
    b: float
    low: float
    high: float
    pairs: int
    run: str = ""

    @property
    def value(self):
        """The ratio of the medians."""
        return self.a / self.b

    @classmethod
    def of(cls, pairs):
        """The Ratio of a list of pairs, at least one."""
        single = [a / b for a, b in pairs]
        return cls(*map(median, zip(*pairs)), min(single), max(single), len(pairs))


class Results(NamedTuple):
    """What one run measured, or several.

    `ratios`    {name of a row: Ratio}
    `left_out`  {name of a row: why it cannot be measured here}
    `failures`  {name of a row: why its measurement failed}
    """

    ratios: dict
    left_out: dict
    failures: dict

    def replace(self, newer):
        """These results, with the rows of a later run in place of those of the same names."""
        names = {*newer.ratios, *newer.left_out, *newer.failures}
        kept = ({name: row for name, row in rows.items() if name not in names} for rows in self)
        return Results(*({**old, **new} for old, new in zip(kept, newer)))

    def save(self, file):
        """Write the results to a JSON file."""
        fields = self._asdict()
        fields["ratios"] = {name: ratio._asdict() for name, ratio in self.ratios.items()}
        file.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file):
        """The results in a JSON file."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        fields["ratios"] = {name: Ratio(**ratio) for name, ratio in fields["ratios"].items()}
        return cls(**fields)

"""The results of a run, and the file that keeps those of docs/benchmarks.md."""

import json
from pathlib import Path
from typing import NamedTuple

from benchmarks.ratio import Ratio
from benchmarks.scale import Cost
from benchmarks.store import Served

#: The results on the page, so that it can be written again without measuring.
RESULTS = Path(__file__).resolve().parent / "results.json"


class Results(NamedTuple):
    """What one run measured.

    `ratios`    {name of a comparison: Ratio}
    `left_out`  {name of a comparison: why it cannot be measured here}
    `failures`  {name of a comparison: why its measurement failed}
    `costs`     the Costs of ranks of large worlds
    `run`       a sentence on the machine and the duration
    `notice`    why these results are not for the page, or an empty string
    `later`     {name of a comparison: a sentence on the later run that measured it}
    """

    ratios: dict
    left_out: dict
    failures: dict
    costs: list
    run: str
    notice: str = ""
    later: dict = {}

    def keep(self, names, notice):
        """The results of some rows, or all without `names`, with the reason why they are not for the page."""
        rows = [
            {name: value for name, value in rows.items() if not names or name in names}
            for rows in (self.ratios, self.left_out, self.failures)
        ]
        return Results(*rows, self.costs, self.run, notice)

    def replace(self, newer):
        """These results, with the rows of a later run in place of those of the same names."""
        names = {*newer.ratios, *newer.left_out, *newer.failures}
        later = {name: run for name, run in self.later.items() if name not in names}
        kept = ({name: row for name, row in rows.items() if name not in names} for rows in self[:3])
        ratios, left_out, failures = ({**old, **new} for old, new in zip(kept, newer[:3]))
        later.update(dict.fromkeys(names, newer.run))
        return self._replace(ratios=ratios, left_out=left_out, failures=failures, later=later)

    def save(self, file):
        """Write the results to a JSON file."""
        fields = self._asdict()
        fields["ratios"] = {name: ratio._asdict() for name, ratio in self.ratios.items()}
        fields["costs"] = [{**cost._asdict(), "served": cost.served and cost.served._asdict()} for cost in self.costs]
        file.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file):
        """The results in a JSON file."""
        fields = json.loads(file.read_text(encoding="utf-8"))
        fields["ratios"] = {name: Ratio(**ratio) for name, ratio in fields["ratios"].items()}
        fields["costs"] = [
            Cost(**{**cost, "served": Served(**cost["served"]) if cost.get("served") else None})
            for cost in fields["costs"]
        ]
        return cls(**fields)

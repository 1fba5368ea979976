# SPDX-License-Identifier: BSD-3-Clause
"""Writes the findings as text or JSON."""

import json

from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN


def as_table(node, findings, faults_only=False):
    """One line for each check, below it the remedy if there is one, and a last line with the counts."""
    rows = [finding for finding in findings if not faults_only or finding.verdict in (WARN, FAIL)]
    table = [("check", "verdict", "finding", "")] + rows if rows else []
    width = max((len(row[0]) for row in table), default=0)
    lines = []
    for check, verdict, finding, remedy in table:
        lines.append("{}  {}  {}".format(check.ljust(width), verdict.ljust(len("verdict")), finding))
        if remedy:
            lines.append("{}  -> {}".format(" " * (width + 2 + len("verdict")), remedy))
    counts = [f"{count} {verdict}" for verdict, count in _counts(findings) if count]
    lines.append("{}: {}".format(node, ", ".join(counts)))
    if faults_only:
        # many nodes write to one output
        lines = lines[-1:] + [f"{node}: {line}" for line in lines[1:-1]]
    return "\n".join(lines) + "\n"


def as_json(node, findings, faults_only=False):
    """One line with the node, the worst verdict and all findings."""
    worst = [verdict for verdict, count in _counts(findings) if count and verdict != NOT_APPLICABLE]
    rows = [dict(finding._asdict()) for finding in findings if not faults_only or finding.verdict in (WARN, FAIL)]
    return json.dumps({"node": node, "verdict": worst[-1] if worst else OK, "checks": rows}) + "\n"


def _counts(findings):
    verdicts = [finding.verdict for finding in findings]
    return [(verdict, verdicts.count(verdict)) for verdict in (OK, NOT_APPLICABLE, WARN, FAIL)]

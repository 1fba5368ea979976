"""Writes the results as Markdown; called by `run`."""

HEADER = "| A against B | A | B | A / B | single pairs | target | anchor |\n|---|---:|---:|---:|---:|---:|---|"
LEGEND = (
    "Medians of seconds, measured in turn, A B A B ..., after one pair that is not counted; "
    "A / B is the ratio of the medians, `single pairs` its smallest and largest value in one pair."
)


def markdown(results, *, machine, left_out=()):
    """The table of `results`, a list of (Comparison, Ratio), with what it takes to read it.

    `machine` is a phrase that says where they were measured; `left_out` is a list of (name of a
    comparison, reason).
    """
    lines = [HEADER, *(_row(comparison, ratio) for comparison, ratio in results), "", LEGEND, f"Machine: {machine}."]
    lines += ["", *(_sides(comparison, ratio) for comparison, ratio in results)]
    lines += [f"- `{name}`: not measured: {reason}" for name, reason in left_out]
    return "\n".join(lines) + "\n"


def seconds(value):
    """Seconds as text, to three digits or whole milliseconds."""
    if round(value, 3) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} s"


def _row(comparison, ratio):
    target = f"≤ {comparison.target}" if comparison.target else "–"
    if comparison.target and round(ratio.value, 2) > comparison.target:  # as printed
        target += ", missed"
    cells = (
        comparison.what,
        seconds(ratio.a),
        seconds(ratio.b),
        f"**{ratio.value:.2f}**",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        target,
        comparison.anchor or "–",
    )
    return f"| {' | '.join(cells)} |"


def _sides(comparison, ratio):
    return f"- `{comparison.name}`, {ratio.pairs} pairs: {comparison.sides}"

"""Writes the results as Markdown; called by `run`."""

HEADER = "| A against B | A | B | A / B | single pairs | target | anchor |\n|---|---:|---:|---:|---:|---:|---|"
LEGEND = (
    "Medians, measured in turn, A B A B ..., after one pair that is not counted, where nothing else is said; "
    "A / B is the ratio of the medians, `single pairs` its smallest and largest value in one pair."
)
SCALE_HEADER = "| nodes | node list | rank | instructions | time |\n|---:|---|---:|---:|---:|"
SCALE_LEGEND = (
    "`conda-python-distributed --dry-run` from start to end as one rank of a step with {gpus} tasks on every node, by "
    "the step's variables alone; instructions counted by valgrind, times are medians of {repetitions}, in turn."
)
#: A node list is shown to about this length.
SHOWN = 28


def markdown(results, *, machine, left_out=()):
    """The table of `results`, a list of (Comparison, Ratio), with what it takes to read it.

    `machine` is a phrase that says where they were measured; `left_out` is a list of (name of a
    comparison, reason).
    """
    lines = [HEADER, *(_row(comparison, ratio) for comparison, ratio in results), "", LEGEND, f"Machine: {machine}."]
    lines += ["", *(_sides(comparison, ratio) for comparison, ratio in results)]
    lines += [f"- `{name}`: not measured: {reason}" for name, reason in left_out]
    return "\n".join(lines) + "\n"


def scale_markdown(costs, *, gpus, repetitions, machine):
    """The table of `costs`, a list of scale.Cost, with what it takes to read it."""
    legend = SCALE_LEGEND.format(gpus=gpus, repetitions=repetitions)
    return "\n".join([SCALE_HEADER, *map(_scale_row, costs), "", legend, f"Machine: {machine}."]) + "\n"


def decimals(ratio):
    """A ratio with two decimals, or with two digits where it is small."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def quantity(value, unit):
    """A value as text with its unit, one of `UNITS`."""
    return UNITS[unit](value)


def instructions(value):
    """Instructions as text, in millions."""
    return f"{value / 1e6:.1f} million"


def calls(value):
    """A number of calls as text."""
    return f"{value:.0f}"


def megabytes(value):
    """A number of bytes as text."""
    return f"{value / 1e6:.1f} MB"


def seconds(value):
    """Seconds as text, to three digits or whole milliseconds."""
    if round(value, 3) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} s"


#: What can be measured, and how it is written.
UNITS = {"seconds": seconds, "instructions": instructions, "calls": calls, "bytes": megabytes}


def _row(comparison, ratio):
    target = f"≤ {comparison.target}" if comparison.target else "–"
    if comparison.target and float(decimals(ratio.value)) > comparison.target:  # as printed
        target += ", missed"
    cells = (
        comparison.what,
        quantity(ratio.a, comparison.unit),
        quantity(ratio.b, comparison.unit),
        f"**{decimals(ratio.value)}**",
        f"{decimals(ratio.low)} to {decimals(ratio.high)}",
        target,
        comparison.anchor or "–",
    )
    return f"| {' | '.join(cells)} |"


def _sides(comparison, ratio):
    return f"- `{comparison.name}`, {ratio.pairs} pairs: {comparison.sides}"


def _scale_row(cost):
    text = cost.world.node_list
    shown = f"`{text}`" if len(text) <= SHOWN else f"`{text[:SHOWN]}...`, {len(text)} characters"
    cells = (len(cost.world.nodes), shown, cost.rank, instructions(cost.instructions), seconds(cost.seconds))
    return f"| {' | '.join(map(str, cells))} |"

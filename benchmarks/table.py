"""Formats results as Markdown."""

from benchmarks.store import CLIENTS, GLOO_CLIENTS, settings

HEADER = (
    "| row | A against B | A | B | A / B | single pairs | target | elsewhere |\n|---|---|---:|---:|---:|---:|---:|---|"
)
LEGEND = (
    "A and B are medians, measured in turn: A B A B ... A / B is the ratio of the medians, `single pairs` its smallest "
    "and largest value in one pair, `elsewhere` the ratio of other software."
)
SCALE_HEADER = (
    "| nodes | node list | rank | instructions | time | connections, files | bytes, NCCL | bytes, gloo | memory "
    "| set |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---|"
)
SCALE_LEGEND = (
    "`conda-python-distributed --dry-run` from start to end, as one rank of a step with {gpus} tasks per node. "
    "Instructions are counted by valgrind; times are medians of {repetitions}, measured in turn. The other columns are "
    "of the store in rank 0, until `init_process_group` has returned on all ranks: measured with real stores and "
    "{clients} clients on this machine ({gloo_clients} with gloo), and computed from those (≈) for more."
)

#: The row with calls per rank, the worlds of the table of waits, and calls that the server of a file system answers.
METADATA, WAITING, CALLS_PER_SECOND = "metadata", (64, 256, 1024, 4096), 20_000


def results_markdown(results, comparisons):
    """The table of Results, with what a reader needs to understand it; rows in the order of `comparisons`."""
    measured = [(each, results.ratios[each.name]) for each in comparisons if each.name in results.ratios]
    lines = [HEADER, *(_row(comparison, ratio) for comparison, ratio in measured), "", LEGEND, results.run]
    lines += [*_later_runs(results.later), ""]
    lines += [_sides(comparison, ratio) for comparison, ratio in measured]
    lines += [f"- `{name}` was not measured: {reason}." for name, reason in results.left_out.items()]
    lines += [f"- `{name}` failed: {reason}" for name, reason in results.failures.items()]
    if results.notice:
        lines[:0] = [f"**{results.notice}**", ""]
    return "\n".join(lines) + "\n"


def scale_markdown(costs, *, gpus, repetitions):
    """The table of `costs`, a list of scale.Cost, with what a reader needs to understand it."""
    clients = {"clients": _series(CLIENTS), "gloo_clients": _series(GLOO_CLIENTS)}
    legend = SCALE_LEGEND.format(gpus=gpus, repetitions=repetitions, **clients)
    return "\n".join([SCALE_HEADER, *map(_scale_row, costs), "", legend]) + "\n"


def waits_markdown(ratios):
    """The table of the seconds that a file system needs for the calls of all ranks, by the counts of `metadata`."""
    if METADATA not in ratios:
        return "Not measured.\n"
    lines = [f"| files | calls per rank | {' | '.join(f'{ranks:,} ranks' for ranks in WAITING)} |"]
    lines.append("|---|---:|" + "---:|" * len(WAITING))
    for files, count in (("venv", ratios[METADATA].b), ("image", ratios[METADATA].a)):
        waits = (seconds(count * ranks / CALLS_PER_SECOND) for ranks in WAITING)
        lines.append(f"| {files} | {count:,.0f} | {' | '.join(waits)} |")
    return "\n".join(lines) + "\n"


def misses(comparison, ratio):
    """Whether the ratio, as it is printed, is larger than its target."""
    return comparison.target is not None and float(decimals(ratio.value)) > comparison.target


def decimals(ratio):
    """A ratio with two decimals, or with two digits if it is small."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:#.2g}"


def quantity(value, unit):
    """A value as text with its unit, a key of `UNITS`."""
    return UNITS[unit](value)


def instructions(value):
    """Instructions as text, in millions."""
    return f"{value / 1e6:.1f} million"


def calls(value):
    """A number of calls as text."""
    return f"{value:,.0f} calls"


def megabytes(value):
    """A number of bytes as text."""
    return f"{value / 1e6:.1f} MB"


def seconds(value):
    """Seconds as text, with three digits or in whole milliseconds."""
    if round(value, 3) < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} s"


#: How each unit of a Comparison is written.
UNITS = {"seconds": seconds, "instructions": instructions, "calls": calls, "bytes": megabytes}


def _row(comparison, ratio):
    target = f"≤ {comparison.target}" if comparison.target is not None else "–"
    cells = (
        f"`{comparison.name}`",
        comparison.title,
        quantity(ratio.a, comparison.unit),
        quantity(ratio.b, comparison.unit),
        f"**{decimals(ratio.value)}**",
        f"{decimals(ratio.low)} to {decimals(ratio.high)}" if ratio.pairs > 1 else "–",
        f"{target}, missed" if misses(comparison, ratio) else target,
        comparison.reference or "–",
    )
    return f"| {' | '.join(cells)} |"


def _sides(comparison, ratio):
    pairs = f"{ratio.pairs} pairs" if ratio.pairs > 1 else "1 pair"
    return f"- `{comparison.name}`, {pairs}. A: {comparison.a}. B: {comparison.b}."


def _later_runs(later):
    """A line for each later run with the names of its rows."""
    for run in dict.fromkeys(later.values()):
        names = ", ".join(f"`{name}`" for name in later if later[name] == run)
        yield f"Later run of {names}: {run}"


def _series(numbers):
    return f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _scale_row(cost):
    cells = (
        *(cost.nodes, cost.node_list, cost.rank, instructions(cost.instructions), seconds(cost.seconds)),
        *_served_cells(cost),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _served_cells(cost):
    served = cost.served
    if served is None:
        return ("–",) * 5
    sign = "≈ " if served.is_computed else ""
    gloo_sign = "" if served.connections in GLOO_CLIENTS else "≈ "
    return (
        f"{sign}{served.connections:,}",
        sign + _size(served.bytes),
        gloo_sign + _size(served.gloo_bytes),
        sign + _size(served.memory),
        settings(served.connections),
    )


def _size(count):
    """A number of bytes as text with two digits or more."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.{0 if count >= 10 * factor else 1}f} {unit}"
    return f"{count} B"

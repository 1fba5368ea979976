"""The lines of a new release in docs/systems.md and CHANGELOG.md."""

import textwrap

from testbed.layout import TestbedError

SYSTEMS = "docs/systems.md"
CHANGELOG = "CHANGELOG.md"


def with_rows(page, successors):
    """The table of tested systems with a row for each new recipe, after that of its predecessor.

    `successors` are names of recipes, new ones by old ones.
    """
    lines = []
    for line in page.splitlines():
        lines.append(line)
        cells = line.split(" | ")
        for old, new in successors.items():
            if line.startswith("| `") and f"`{old}`" in cells[0]:
                lines.append(" | ".join([f"| `{new}`", cells[1], "not installed yet", "style, dry run", cells[-1]]))
                lines[-1] = lines[-1].replace(" | the same |", f" | as for `{old}` |")
    added = {new for new in successors.values() if any(line.startswith(f"| `{new}`") for line in lines)}
    missing = [old for old, new in successors.items() if new not in added]
    if missing:
        raise TestbedError(f"{SYSTEMS}: no row of {', '.join(missing)}. Add one.")
    return "\n".join(lines) + "\n"


def with_entry(page, entry):
    """The change log with an entry at the end of its first list."""
    lines = page.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("- "))
    end = next((number for number in range(first, len(lines)) if not lines[number]), len(lines))
    lines[end:end] = textwrap.wrap(entry, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"

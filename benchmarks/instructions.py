"""Counts the instructions that a command executes: the same on a busy machine, to a few in a thousand."""

from testbed.layout import TestbedError
from testbed.packages import find_optional

# A process writes its count when it ends, and before `exec`, which does not end it. All counts go to standard output:
# a file would be overwritten after `exec`.
CALLGRIND = (
    "--tool=callgrind",
    "--trace-children=yes",
    "--dump-before=execve",
    "--combine-dumps=yes",
    "--callgrind-out-file=/dev/stdout",
    "--dump-line=no",
    "--quiet",
)
COUNT = "totals: "


def count_instructions(session, env, command):
    """Instructions of `command`, a list, with those of its children and of every program that they `exec`.

    None of these may close its standard output. Raises TestbedError if valgrind is missing or `command` fails.
    """
    valgrind = find_optional("valgrind")
    if valgrind is None:
        raise TestbedError("valgrind not found on PATH: it counts the instructions. Run `apt-get install valgrind`.")
    # without it, Python's dictionaries have another order, and another cost, in every run
    output = session.run([valgrind, *CALLGRIND, *command], {**env, "PYTHONHASHSEED": "0"})
    counts = [int(line[len(COUNT) :]) for line in output.splitlines() if line.startswith(COUNT)]
    if not counts:
        raise TestbedError(f"valgrind counted nothing in `{command[0]}`.")
    return sum(counts)

"""Counts the instructions that a command executes; called by `measurements` and `scale`.

A busy machine makes a command slower, but not longer: the same command executes the same instructions, to a
few in a thousand.
"""

from testbed.layout import TestbedError
from testbed.packages import find_optional

# A process writes its count when it ends. To become another program by `exec` is no end, so it writes before
# that, too; and as that program would begin the file anew, there is no file, only standard output.
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


def instructions_of(session, env, command):
    """Instructions of `command` from start to end, with all that it starts and all that it becomes.

    None of them may close its standard output. Raises TestbedError where valgrind is missing or `command` fails.
    """
    valgrind = find_optional("valgrind")
    if valgrind is None:
        raise TestbedError("There is no valgrind to count instructions with: `apt-get install valgrind`.")
    # Python's dictionaries have another order, and cost, in every run otherwise.
    output = session.run([valgrind, *CALLGRIND, *command], {**env, "PYTHONHASHSEED": "0"})
    counts = [int(line[len(COUNT) :]) for line in output.splitlines() if line.startswith(COUNT)]
    if not counts:
        raise TestbedError(f"valgrind counted nothing in `{command[0]}`.")
    return sum(counts)

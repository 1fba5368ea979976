"""Counts the calls by which a command asks shared file systems for files; called by `measurements`."""

import re

from testbed.layout import TestbedError
from testbed.packages import find_optional

#: Calls that name a file, one a line, as strace writes them: `1234 openat(AT_FDCWD, "/etc/hosts", ...`.
CALL = re.compile(r'^\d+ +\w+\((?:AT_FDCWD, |\d+, )?"([^"]*)"', re.MULTILINE)
#: What images see of shared file systems under names of their own.
BOUND = ("/runscripts", "/payload", "/user-software")


def calls_of(session, env, launch, command, *, shared, ranks):
    """Calls per rank for files below the directories `shared`, or relative to one of them, with all that ranks start.

    Those for the session's scratch directory, where the ranks run, do not count: Python looks into the user's own
    directory at every import, wherever it is installed. Raises TestbedError where strace is missing or `command` fails.
    """
    strace = find_optional("strace")
    if strace is None:
        raise TestbedError("There is no strace to count calls with: `apt-get install strace`.")
    traces = session.scratch / "traces"
    traces.mkdir(exist_ok=True)
    for trace in traces.iterdir():
        trace.unlink()
    # each rank's processes write to a file of its own
    tracing = ["bash", "-c", f'exec {strace} -f --seccomp-bpf -qq -e trace=%file -o "$0/$SLURM_PROCID" "$@"', traces]
    session.run([*launch, *tracing, *command], env)
    paths = [path for trace in traces.iterdir() for path in CALL.findall(trace.read_text(errors="replace"))]
    if len(list(traces.iterdir())) != ranks:
        raise TestbedError(f"strace followed {len(list(traces.iterdir()))} ranks of {ranks}.")
    places = tuple(f"{place}/" for place in (*shared, *BOUND))
    own = f"{session.scratch}/"
    return sum(f"{path}/".startswith(places) and not f"{path}/".startswith(own) for path in paths) / ranks

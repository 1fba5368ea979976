"""Counts the system calls by which the ranks of a step name files on shared file systems."""

import re

from testbed.layout import TestbedError
from testbed.packages import find_optional

#: Calls that name a file, one per line, as strace writes them: `1234 openat(AT_FDCWD, "/etc/hosts", ...`.
CALL = re.compile(r'^\d+ +\w+\((?:AT_FDCWD, |\d+, )?"([^"]*)"', re.MULTILINE)


def count_file_calls(session, env, launch, command, *, below, ranks):
    """Calls per rank for files in the directories `below`, by all processes of the `ranks` that `launch` starts.

    Calls for the session's scratch directory, where the ranks run, do not count: Python searches the user's own
    directory at every import, wherever it is installed. Raises TestbedError if strace is missing or `command` fails.
    """
    strace = find_optional("strace")
    if strace is None:
        raise TestbedError("strace not found on PATH: it counts the calls. Run `apt-get install strace`.")
    traces = session.scratch / "traces"
    traces.mkdir(exist_ok=True)
    for trace in traces.iterdir():
        trace.unlink()
    # one file per rank, for all processes of the rank
    tracing = ["bash", "-c", f'exec {strace} -f --seccomp-bpf -qq -e trace=%file -o "$0/$SLURM_PROCID" "$@"', traces]
    session.run([*launch, *tracing, *command], env)
    texts = [trace.read_text(errors="replace") for trace in traces.iterdir()]
    if len(texts) != ranks:
        raise TestbedError(f"strace followed {len(texts)} ranks of {ranks}.")
    return sum(count_calls(text, below, session.scratch) for text in texts) / ranks


def count_calls(trace, below, scratch):
    """Calls of a trace for files in the directories `below`, without those in `scratch`."""
    directories, own = tuple(f"{directory}/" for directory in below), f"{scratch}/"
    paths = (f"{path}/" for path in CALL.findall(trace))
    return sum(path.startswith(directories) and not path.startswith(own) for path in paths)

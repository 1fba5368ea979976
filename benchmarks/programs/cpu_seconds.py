#!/usr/bin/env python3
"""Runs a command and prints the CPU seconds of the command and of all its descendants, also of daemons.

It runs as a task of srun: a task is a child of slurmd, so srun cannot measure it.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys

BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER (prctl(2))
LABEL = "CPU seconds:"


def main(command):
    """Run `command`, report, and return its exit status."""
    ctypes.CDLL(None).prctl(BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)
    status = subprocess.call(command)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(LABEL, usage.ru_utime + usage.ru_stime, flush=True)
    return status


def find_reports(output):
    """The CPU seconds that each task reported in the `output` of a step."""
    return [float(line[len(LABEL) :]) for line in output.splitlines() if line.startswith(LABEL)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

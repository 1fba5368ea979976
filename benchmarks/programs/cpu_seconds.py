#!/usr/bin/env python3
"""Runs a command and prints the CPU seconds of it and of all that it leaves behind, which this waits for.

It stands in front of a task in measurements.py: tasks are children of slurmd's, not of srun, which knows
nothing of their time.
"""

import contextlib
import ctypes
import os
import resource
import subprocess
import sys

BECOME_PARENT_OF_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER (prctl(2))

ctypes.CDLL(None).prctl(BECOME_PARENT_OF_ORPHANS, 1, 0, 0, 0)
status = subprocess.call(sys.argv[1:])
with contextlib.suppress(ChildProcessError):
    while True:
        os.wait()
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print("CPU seconds:", usage.ru_utime + usage.ru_stime, flush=True)
sys.exit(status)

#!/usr/bin/env python3
"""Runs a command and prints the CPU seconds of it and of all that it waited for.

It stands in front of a task in measurements.py: tasks are children of slurmd's, not of srun, which knows
nothing of their time.
"""

import resource
import subprocess
import sys

status = subprocess.call(sys.argv[1:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print("CPU seconds:", usage.ru_utime + usage.ru_stime, flush=True)
sys.exit(status)

# SPDX-License-Identifier: BSD-3-Clause
"""What the commands on the host share: output to a disk that may be full, and Slurm's commands with a time limit."""

import contextlib
import os
import subprocess

#: Variables that describe a job or a step, or select rows: Slurm's commands would obey them.
OF_SLURM = ("SLURM_", "SLURMD_", "SRUN_", "SQUEUE_", "SINFO_")


def write_output(program, text):
    """Write `text` to standard output; return 0, 1 if its reader has ended, 2 after an error message."""
    try:
        with open(1, "wb", closefd=False) as output:
            output.write(text.encode(errors="surrogateescape"))
    except BrokenPipeError:  # such as `pytorch-doctor | head`
        return 1
    except OSError as error:
        print_message(program, f"cannot write to standard output: {error.strerror}. Check its disk")
        return 2
    return 0


def print_message(program, text):
    """Write a line to standard error, unbuffered: a terminal that is gone does not change the exit status."""
    left = f"{program}: {text}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        while left:
            left = left[os.write(2, left) :]


def outside_of_jobs(env):
    """The environment without the variables of Slurm that describe a job or a step around this command."""
    return {name: env[name] for name in env if name == "SLURM_CONF" or not name.startswith(OF_SLURM)}


def call(command, seconds, stderr=subprocess.PIPE):
    """Exit status, standard output and errors of a command of Slurm; 124 and what it wrote if it timed out."""
    limited = ["timeout", "--foreground", "--kill-after=10", str(seconds), *command]  # srun ends its step
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
    done = subprocess.run(limited, env=outside_of_jobs(os.environ), check=False, **pipes)
    return done.returncode, done.stdout.decode(errors="replace"), (done.stderr or b"").decode(errors="replace")

# SPDX-License-Identifier: BSD-3-Clause
"""Starts a command on the host; and what these share: output to a full disk, programs with a time limit, numbers.

Arguments: the name of the command, as `start` is called, and its arguments.
"""

import argparse
import contextlib
import os
import subprocess
import sys
from importlib import import_module

if __name__ == "__main__":
    sys.path.insert(0, __file__.rpartition("/")[0])  # `python -I` leaves it out
from pytorch_launch import printable  # noqa: E402
from pytorch_launch.launchers.allocation import outside_of_jobs  # noqa: E402

#: The modules whose `main` is the command.
MODULES = {
    "pytorch-doctor": "pytorch_doctor.doctor",
    "pytorch-run": "pytorch_run",
    "pytorch-stacks": "pytorch_stacks.command",
    "pytorch-stage": "pytorch_stage",
}


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
    write_all(2, f"{program}: {printable(str(text))}\n".encode(errors="backslashreplace"))


def write_all(descriptor, data):
    """Write all of `data` at once, so that nothing stays in a buffer; an output that is gone is no error."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(descriptor, data) :]


def run(command, env, stderr=subprocess.PIPE):
    """Exit status, standard output and errors of a command, which reads nothing. Raises OSError."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": stderr}
    done = subprocess.run(command, env=env, check=False, **pipes)
    return done.returncode, done.stdout.decode(errors="replace"), (done.stderr or b"").decode(errors="replace")


def call(command, seconds, stderr=subprocess.PIPE):
    """The same of a command of Slurm; 124 and what it wrote if it timed out."""
    limited = ["timeout", "--foreground", "--kill-after=10", str(seconds), *command]  # srun ends its step
    return run(limited, outside_of_jobs(os.environ), stderr)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message):
        self.exit(2, f"{self.prog}: {printable(message)}. See --help\n")


def positive(text):
    """A number from 1 to 999999, for argparse: more seconds overflow the kernel's clocks."""
    if not text.isdecimal() or len(text) > 6 or int(text) == 0:
        raise argparse.ArgumentTypeError(text[:20] + " is not a number from 1 to 999999")
    return int(text)


if __name__ == "__main__":
    sys.exit(import_module(MODULES[sys.argv[1]]).main(sys.argv[2:]))

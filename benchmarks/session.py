"""Runs commands as a user of the testbed, and ends all of their processes."""

import os
import signal
import subprocess
import time
from pathlib import Path

from testbed import shell
from testbed.layout import TestbedError
from testbed.recipes import module

TREE = Path(__file__).resolve().parents[1]
#: Programs that run as one of the sides, or in front of one.
PROGRAMS = Path(__file__).resolve().parent / "programs"
#: Variables of the caller that a login sets; all others come from the testbed.
LOGIN = ("HOME", "USER", "LOGNAME", "PATH", "SHELL", "TERM")
#: Ten times the longest command; a job may wait for nodes forever.
TIMEOUT_SECONDS = 900


class NotMeasurable(Exception):
    """Why rows cannot be measured on this machine."""


class Session:
    """Shells on one testbed.

    `layout`   the Layout of the testbed
    `scratch`  a directory in it for all files that are written here; its owner removes it
    """

    def __init__(self, layout, scratch):
        self.layout = layout
        self.scratch = scratch

    def environment(self, *commands):
        """The variables of a login shell on the testbed after some shell `commands`."""
        script = "\n".join([shell.program_code(self.layout), "set -e", *commands, "env -0"])
        login = {name: os.environ[name] for name in LOGIN if name in os.environ}
        entries = self.run(["bash", "-c", script], login).split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)

    def load(self, *recipes):
        """The variables of a login shell with the modules of some recipes."""
        return self.environment(f"module load {' '.join(map(module, recipes))}")

    def time(self, command, env):
        """Seconds that `command`, a list, takes from start to end. Raises TestbedError if it fails."""
        start = time.monotonic()
        self.run(command, env)
        return time.monotonic() - start

    def run(self, command, env):
        """Run `command`, a list, in the scratch directory; return its standard output.

        Its processes end with this function, also if it is interrupted. Raises TestbedError if it fails.
        """
        words = [str(word) for word in command]
        shown = " ".join(words[:4])
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        try:
            process = subprocess.Popen(words, **pipes, cwd=self.scratch, env=env, start_new_session=True)
        except OSError as error:
            raise TestbedError(f"`{words[0]}` could not be started: {error.strerror}.") from error
        try:
            output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"`{shown} ...` timed out after {TIMEOUT_SECONDS} s.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
        if process.returncode:
            tail = "\n    ".join((output + errors).strip().splitlines()[-8:])
            raise TestbedError(f"`{shown} ...` failed with status {process.returncode}.\n    {tail}")
        return output

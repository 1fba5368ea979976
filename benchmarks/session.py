"""Runs commands as a user of the testbed and cleans up after them; called by `run` and `measurements`."""

import os
import signal
import subprocess

from testbed import shell
from testbed.layout import TestbedError

# What a login gives; everything else comes from the testbed, whatever the caller has loaded or exported.
LOGIN = ("HOME", "USER", "LOGNAME", "PATH", "SHELL", "TERM")
# No command takes a tenth of it; a job that waits for nodes may never start.
LIMIT = 900


class Session:
    """Shells on one testbed.

    `layout`   where the testbed is
    `scratch`  a directory inside it for what is written here, removed by whoever made it
    """

    def __init__(self, layout, scratch):
        self.layout = layout
        self.scratch = scratch

    def environment(self, *commands):
        """The variables of a login shell on the testbed after some shell `commands`."""
        script = "\n".join([shell.environment_code(self.layout), "set -e", *commands, "env -0"])
        login = {name: os.environ[name] for name in LOGIN if name in os.environ}
        entries = self.run(["bash", "-c", script], login).split("\0")
        return dict(entry.split("=", 1) for entry in entries if entry)

    def run(self, command, env):
        """Run `command`, a list, in the scratch directory; return its standard output.

        It and all that it starts end with this function, also when that is interrupted. Raises
        TestbedError where it fails.
        """
        words = [str(word) for word in command]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=self.scratch,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise TestbedError(f"`{words[0]}` could not be started: {error.strerror}.") from error
        try:
            output, errors = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired as error:
            raise TestbedError(f"`{' '.join(words[:4])} ...` did not end in {LIMIT} s.") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()
        if process.returncode:
            tail = "\n    ".join((output + errors).strip().splitlines()[-8:])
            raise TestbedError(f"`{' '.join(words[:4])} ...` ended with status {process.returncode}.\n    {tail}")
        return output

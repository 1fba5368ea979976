"""A user who installs a framework and runs the commands of docs/frameworks.md."""

import shutil
from pathlib import Path

from framework_page import commands

PROGRAMS = Path(__file__).parent / "frameworks"
#: Seconds for downloads of hundreds of megabytes, packages that are built, and imports of all ranks on few cores.
LONG = 3600


class User:
    """A user's shell with a module loaded, in a directory with a program."""

    def __init__(self, testbed, load, directory, *, venv):
        self.testbed = testbed
        self.load = f"{load}\nexport PIP_CACHE_DIR={testbed.layout.root}/pip"
        self.directory = directory
        self.venv = venv

    def line(self, command):
        """Return a command of the page as it is for this module."""
        if not self.venv:
            return command
        for container, venv in (
            ("singularity exec $SIF ", ""),
            ("pip install ", "pip install --user "),
            ("~/submitit/bin/python ", "python "),
        ):
            command = command.replace(container, venv)
        return command

    def install(self, section):
        """Run the commands that install the packages of a section; the venv module's user needs no other Python."""
        lines = [line for line in commands(section, "Install") if not (self.venv and "-m venv" in line)]
        self.run("\n".join(map(self.line, lines)))

    def program(self, name, copy="train.py"):
        """Copy a program to the name that the page gives it."""
        shutil.copy(PROGRAMS / name, self.directory / copy)

    def run(self, script):
        """Run a script that must succeed; return its output."""
        return self.testbed.run(f"{self.load}\n{self.line(script)}", cwd=self.directory, timeout=LONG)

    def run_unchecked(self, script):
        """Run a script; return the process."""
        return self.testbed.run_unchecked(f"{self.load}\n{self.line(script)}", cwd=self.directory, timeout=LONG)

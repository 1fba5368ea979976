"""Runs Lmod and Environment Modules, each in a shell without Slurm, EasyBuild and loaded modules."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from testbed.layout import TestbedError
from testbed.packages import find_command, find_lmod

MODULEFILES = Path(__file__).resolve().parents[1] / "modulefiles"

#: Lmod's records of what is loaded; some remain after unloading (lmod.readthedocs.io).
BOOKKEEPING = re.compile(r"^(_ModuleTable\d+_|_ModuleTable_Sz_|__LMOD_\w+)=")
#: Records of loaded modules that both module systems keep until unloading.
RECORDS = re.compile(r"LOADEDMODULES|_LMFILES_|__MODULES_\w+|_")
#: Shell code that writes the environment to a file.
SNAPSHOT = "env --null | sort --zero-terminated > {}"


def snapshot(path):
    """Return the environment that `SNAPSHOT` wrote as a list of NAME=VALUE, without Lmod's records."""
    return [entry for entry in path.read_text().split("\0") if entry and not BOOKKEEPING.match(entry)]


def values(path):
    """Return a snapshot's variables and values, without the module systems' records."""
    entries = dict(entry.split("=", 1) for entry in snapshot(path))
    return {name: value for name, value in entries.items() if not RECORDS.fullmatch(name)}


class ModuleSystem:
    """A module system in a shell without Slurm, EasyBuild and loaded modules."""

    def __init__(self, name, code):
        self.name = name
        self.code = code

    def run_unchecked(self, script, *directories):
        """Run a bash script with `directories` as MODULEPATH, by default this tree's; return the completed process."""
        lines = [self.code, f"export MODULEPATH={':'.join(map(str, directories or (MODULEFILES,)))}", script]
        # Lmod removes duplicates from every path that a module extends
        path = os.pathsep.join(dict.fromkeys(os.environ["PATH"].split(os.pathsep)))
        return subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            env={"HOME": os.environ["HOME"], "PATH": path}, cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def run(self, script, *directories):
        """Run a bash script that must succeed; return its standard output."""
        result = self.run_unchecked("set -e\n" + script, *directories)
        if result.returncode != 0:
            raise AssertionError(f"{script}\n{result.stdout}\n{result.stderr}")
        return result.stdout


def find(layout, name):
    """Return the testbed's Lmod, or Environment Modules: the machine's, or Debian's unpacked below the testbed.

    Raises
    ------
    TestbedError
        Why Environment Modules cannot run on this machine.
    """
    if name == "Lmod":
        return ModuleSystem(name, f". {shlex.quote(str(find_lmod()))}")
    return ModuleSystem(name, f'module() {{ eval "$(tclsh {shlex.quote(str(modulecmd(layout)))} bash "$@")"; }}')


def modulecmd(layout):
    """Return modulecmd.tcl: the machine's, or that of Debian's package, unpacked because it conflicts with Lmod's."""
    if "MODULES_CMD" in os.environ:
        return Path(os.environ["MODULES_CMD"])
    directory = layout.root / "environment-modules"
    if not any(directory.glob("*.deb")):
        if not (find_command("apt-get") and find_command("dpkg")):
            raise TestbedError("Environment Modules are not installed, and can be unpacked on Debian and Ubuntu only.")
        directory.mkdir(exist_ok=True)
        answer = subprocess.run(
            ["apt-get", "download", "environment-modules"], cwd=directory, capture_output=True, text=True, check=False
        )
        if answer.returncode:
            shutil.rmtree(directory)
            raise TestbedError(f"apt-get cannot download environment-modules: {answer.stderr.strip()}")
    package = next(directory.glob("*.deb"))
    subprocess.run(["dpkg", "-x", package, directory / "root"], check=True)
    return next((directory / "root" / "usr" / "lib").rglob("modulecmd.tcl"))

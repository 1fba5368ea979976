"""The two module systems, Lmod and Environment Modules, each in a shell that has nothing else; called by the tests."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from testbed.layout import TestbedError
from testbed.packages import find_command, find_lmod

MODULEFILES = Path(__file__).resolve().parents[1] / "modulefiles"

#: Lmod's own records of what is loaded; it keeps some of them after unloading (lmod.readthedocs.io).
BOOKKEEPING = re.compile(r"^(_ModuleTable\d+_|_ModuleTable_Sz_|__LMOD_\w+)=")
#: What both keep of what is loaded, for as long as it is.
RECORDS = re.compile(r"LOADEDMODULES|_LMFILES_|__MODULES_\w+|_")
#: Where a shell's environment goes to a file.
SNAPSHOT = "env --null | sort --zero-terminated > {}"


def snapshot(path):
    """The environment that `SNAPSHOT` wrote, without Lmod's bookkeeping, as a list of NAME=VALUE."""
    return [entry for entry in path.read_text().split("\0") if entry and not BOOKKEEPING.match(entry)]


def values(path):
    """A snapshot's variables and values, without the module systems' own records of what is loaded."""
    entries = dict(entry.split("=", 1) for entry in snapshot(path))
    return {name: value for name, value in entries.items() if not RECORDS.fullmatch(name)}


class ModuleSystem:
    """A module system in a shell that has nothing else: no Slurm, no EasyBuild, no module loaded."""

    def __init__(self, name, code):
        self.name = name
        self.code = code

    def run_unchecked(self, script, *directories):
        """Run a bash script with `directories` as MODULEPATH, by default this tree's; output as text."""
        lines = [self.code, f"export MODULEPATH={':'.join(map(str, directories or (MODULEFILES,)))}", script]
        # Lmod drops duplicates from every path that a module extends
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
    """The Lmod that the testbed has, or Environment Modules: of the machine, else Debian's unpacked in the testbed.

    Raises
    ------
    TestbedError
        With the reason why Environment Modules cannot be had here.
    """
    if name == "Lmod":
        return ModuleSystem(name, f". {shlex.quote(str(find_lmod()))}")
    return ModuleSystem(name, f'module() {{ eval "$(tclsh {shlex.quote(str(modulecmd(layout)))} bash "$@")"; }}')


def modulecmd(layout):
    """Environment Modules' modulecmd.tcl: of the machine, else Debian's unpacked, as that conflicts with Lmod's."""
    if "MODULES_CMD" in os.environ:
        return Path(os.environ["MODULES_CMD"])
    directory = layout.root / "environment-modules"
    if not any(directory.glob("*.deb")):
        if not (find_command("apt-get") and find_command("dpkg")):
            raise TestbedError("Environment Modules are not here; their package is unpacked on Debian and Ubuntu only.")
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

"""Runs Lmod and Environment Modules, each in a shell without Slurm, EasyBuild and loaded modules."""

import getpass
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from testbed.layout import TestbedError
from testbed.packages import find_lmod
from testbed.progress import run

#: The Debian package of each module system, and its suite; None: the machine's. They only need what bookworm's need.
SYSTEMS = {
    "Lmod": ("lmod", None),
    "Lmod 8.7.60": ("lmod", "trixie"),
    "Environment Modules": ("environment-modules", None),
    "Environment Modules 4.6.1": ("environment-modules", "bullseye"),
    "Environment Modules 5.5.0": ("environment-modules", "trixie"),
    "Environment Modules 5.7.0": ("environment-modules", "forky"),
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

DEBIAN_ONLY = "Packages can be unpacked on Debian and Ubuntu only."

MODULEFILES = Path(__file__).resolve().parents[1] / "modulefiles"

#: Records of what is loaded, of Lmod (lmod.readthedocs.io) and Environment Modules 4; some remain after unloading.
BOOKKEEPING = re.compile(r"^(_ModuleTable\d+_|_ModuleTable_Sz_|__LMOD_\w+|\w+_modshare|MODULES_LM\w+)=")
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

    def __init__(self, name, code, version=""):
        self.name = name
        self.code = code
        self.version = version

    def run_unchecked(self, script, *directories):
        """Run a bash script with `directories` as MODULEPATH, by default this tree's; return the completed process."""
        lines = [self.code, f"export MODULEPATH={':'.join(map(str, directories or (MODULEFILES,)))}", script]
        # Lmod removes duplicates from every path that a module extends
        path = os.pathsep.join(dict.fromkeys(os.environ["PATH"].split(os.pathsep)))
        return subprocess.run(
            ["bash", "-c", "\n".join(lines)],
            env={"HOME": os.environ["HOME"], "PATH": path},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def run(self, script, *directories):
        """Run a bash script that must succeed; return its standard output."""
        result = self.run_unchecked("set -e\n" + script, *directories)
        if result.returncode != 0:
            raise AssertionError(f"{script}\n{result.stdout}\n{result.stderr}")
        return result.stdout


def find(layout, name):
    """Return a module system by its name in `SYSTEMS`. Raises TestbedError if it cannot run on this machine.

    Without a version: the testbed's Lmod, or the machine's Environment Modules, else Debian's, unpacked.
    """
    package, suite = SYSTEMS[name]
    system, _, version = name.rpartition(" ") if suite else (name, "", "")
    if name == "Lmod":
        return ModuleSystem(system, f". {shlex.quote(str(find_lmod()))}")
    if package == "lmod":
        command = [next(unpack(layout, package, suite).glob("usr/share/lmod/[0-9]*/libexec/lmod"))]
    else:
        command = ["tclsh", modulecmd(layout, suite)]
    code = f'module() {{ eval "$({shlex.join(map(str, command))} bash "$@")"; }}'
    return ModuleSystem(system, code, version)


def modulecmd(layout, suite=None):
    """Return modulecmd.tcl: the machine's, or that of Debian's package, unpacked because it conflicts with Lmod's."""
    if suite is None and "MODULES_CMD" in os.environ:
        return Path(os.environ["MODULES_CMD"])
    return next((unpack(layout, "environment-modules", suite) / "usr" / "lib").rglob("modulecmd.tcl"))


def unpack(layout, package, suite=None):
    """Unpack a package of a suite of Debian, by default the machine's, below the testbed; return the directory."""
    directory = layout.root / (f"{package}-{suite}" if suite else package)
    with layout.locked(directory.name):
        if not (directory / "root").exists():
            (file,) = download(directory, suite, package)
            subprocess.run(["dpkg", "-x", file, directory / "new"], check=True)
            (directory / "new").rename(directory / "root")
    return directory / "root"


def download(directory, suite, *packages):
    """Download packages of a suite of Debian, by default the machine's, to a new directory; return their files."""
    shutil.rmtree(directory, ignore_errors=True)  # what a killed process has left
    for part in ("lists/partial", "cache/archives/partial"):
        (directory / part).mkdir(parents=True)
    apt = ["apt-get"]
    if suite:
        (directory / "sources.list").write_text(source_line(suite) + "\n")
        settings = {
            "Dir::Etc::SourceList": directory / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": directory / "lists",
            "Dir::Cache": directory / "cache",
            "APT::Sandbox::User": getpass.getuser(),
        }
        for name, value in settings.items():
            apt += ["-o", f"{name}={value}"]
        run([*apt, "update"])
    run([*apt, "download", *packages], cwd=directory, advice=DEBIAN_ONLY)
    return sorted(directory.glob("*.deb"))


def source_line(suite):
    """Return the line of apt's sources for a suite of Debian, from the machine's mirror."""
    show = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian", "Created-By: Packages"]
    mirror = re.search(r"^\S+:/\S+$", run(show, advice=DEBIAN_ONLY), re.MULTILINE)
    if not mirror:
        raise TestbedError(f"apt has no mirror of Debian to download packages of {suite} from.")
    return f"deb [signed-by={KEYRING}] {mirror[0]} {suite} main"

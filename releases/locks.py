"""Locks of a release: uv resolves the requirements for each machine, and the lock gets the hashes of their wheels."""

import ast
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from testbed.layout import TestbedError

#: The newest C library that wheels may need, as in easyblocks/pytorch_install/sources/wheels.py.
PLATFORM = "manylinux_2_28"
#: Minor versions of the C library in older platform tags (PEP 600).
LEGACY = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
#: uv's variables that belong to a loaded PyTorch module or to other projects.
FOREIGN = ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_REQUIREMENTS")
#: What uv prints if an index does not answer.
UNREACHABLE = re.compile(r"error sending request|timed? ?out|HTTP status (server error|5\d\d)", re.IGNORECASE)
#: uv's options for pip's settings.
OPTIONS = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}


class NotReachedError(Exception):
    """An index or registry does not answer; the message is the reason."""


class Package(NamedTuple):
    """A locked package: its version, and the SHA-256 of its wheels."""

    version: str
    hashes: tuple


class Lock(NamedTuple):
    """The text of a lock, and what its comments declare."""

    text: str
    requirements: list
    machines: list
    packages: dict

    @property
    def torch(self):
        """Version of torch, with the label of its build: ``2.13.0+cpu``."""
        return self.packages["torch"].version

    @property
    def cuda(self):
        """Version of CUDA (<major>.<minor>), "" for CPUs."""
        toolkit = self.packages.get("cuda-toolkit")
        return ".".join(toolkit.version.split(".")[:2]) if toolkit else ""


def read_lock(path):
    """The Lock in a file; TestbedError if it does not declare its requirements and machines."""
    text = path.read_text()
    declared = []
    for name in ("requirements", "machines"):
        found = re.search(rf"^# {name}: (.+)$", text, re.MULTILINE)
        if not found:
            raise TestbedError(f"{path}: no line `# {name}: ...`. Add it (docs/recipes.md, Lock the requirements).")
        declared.append(found[1].split())
    packages = {
        line.partition("==")[0]: Package(line.split()[0].partition("==")[2],
                                         tuple(re.findall(r"sha256:([0-9a-f]{64})", line)))
        for line in text.splitlines() if line and not line.startswith("#")
    }  # fmt: skip
    return Lock(text, *declared, packages)


def renew(lock, torch, machines, resolve):
    """The packages of the lock for another version of torch; `resolve` is a function like `Resolver.resolve`.

    Each machine gets the same versions. Raises TestbedError if that is impossible.
    """
    # exactly this build: `==2.13.0` would also accept 2.13.0+cpu
    wanted = [f"torch==={torch}" if name == "torch" else name for name in lock.requirements]
    found = {machines[0]: resolve(wanted, machines[0], [])}
    first = found[machines[0]]
    versions = [f"{name}=={package.version}" for name, package in first.items()]
    for machine in machines[1:]:
        found[machine] = resolve(wanted, machine, versions)
        if set(found[machine]) != set(first):
            names = ", ".join(sorted(set(found[machine]) ^ set(first)))
            raise TestbedError(
                f"torch {torch} needs {names} only on one of {', '.join(machines)}, which one lock cannot express. "
                "Lock for one machine (--machine)."
            )
    return {
        name: Package(first[name].version, tuple(dict.fromkeys(
            value for machine in machines for value in found[machine][name].hashes)))
        for name in first
    }  # fmt: skip


def lock_text(lock, packages, machines, change):
    """The text of a lock: the comments of the old one, and its packages in their order, new ones last."""
    comments = [line for line in lock.text.splitlines() if line.startswith("#")]
    header = [f"# machines: {' '.join(machines)}" if line.startswith("# machines:") else change(line)
              for line in comments]  # fmt: skip
    places = {name: place for place, name in enumerate(lock.packages)}
    order = sorted(packages, key=lambda name: places.get(name, len(places)))
    return "\n".join([*header, *(pin(name, packages[name]) for name in order)]) + "\n"


def pin(name, package):
    """A package's line of a lock."""
    return " ".join([f"{name}=={package.version}", *(f"--hash=sha256:{value}" for value in package.hashes)])


class Resolver:
    """Resolves requirements with uv, for one version of Python, from the package indexes of pip's configuration.

    Like the easyblock, it tries `index` only if the others do not have the wheels.
    """

    def __init__(self, tools, python, index=None):
        self.tools = tools
        self.python = python
        self.index = index

    def resolve(self, requirements, machine, constraints):
        """Return the packages that the requirements need on a machine, by name.

        Raises
        ------
        NotReachedError
            If a package index does not answer.
        TestbedError
            If no index has the requirements; with uv's reason.
        """
        status, output = self.compile(requirements, machine, constraints, [])
        if status and self.index:
            status, output = self.compile(requirements, machine, constraints, ["--index", self.index])
        if status:
            reasons = re.findall(r"^(?:error|\s*cause): (.*)$", output, re.MULTILINE) or [output.strip()]
            if UNREACHABLE.search(output):
                raise NotReachedError(f"{self.index or 'the package index'} does not answer: {reasons[-1]}")
            raise TestbedError(f"No lock for Python {self.python} on {machine}: {reasons[-1]}")
        return wheels_of(output)

    def compile(self, requirements, machine, constraints, options):
        """Run `uv pip compile`; return its exit status, and the lock (pylock.toml) or its messages."""
        environment = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        with tempfile.TemporaryDirectory() as directory:
            wanted, limits = Path(directory, "requirements.in"), Path(directory, "constraints.txt")
            wanted.write_text("".join(f"{line}\n" for line in requirements))
            limits.write_text("".join(f"{line}\n" for line in constraints))
            command = [
                self.tools / "uv", "pip", "compile", wanted, "--constraints", limits, "--generate-hashes",
                "--format", "pylock.toml", "--no-config", "--no-header", "--color", "never", "--no-progress",
                "--python-version", self.python, "--python-platform", f"{machine}-{PLATFORM}",
                "--no-python-downloads", "--only-binary", ":all:",
                # as pip does: the best version of all indexes
                "--index-strategy", "unsafe-best-match", *options, *pip_indexes(self.tools),
            ]  # fmt: skip
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        return result.returncode, result.stderr if result.returncode else result.stdout


def pip_indexes(tools):
    """The package indexes and directories of pip's configuration, as options of uv."""
    listing = subprocess.run([tools / "pip", "config", "list"], capture_output=True, text=True, check=False)
    if listing.returncode:
        raise TestbedError(f"`pip config list` fails: {listing.stderr.strip()}")
    settings = {}
    for line in listing.stdout.splitlines():  # `global.find-links='/wheels'`; `:env:` takes precedence
        name, _, value = line.partition("=")
        settings.setdefault(name.rpartition(".")[2], {})[name] = ast.literal_eval(value)

    def words(name):
        values = settings.get(name, {"": ""})
        return values.get(f":env:.{name}", list(values.values())[-1]).split()

    options = ["--no-index"] if words("no-index")[:1] in (["1"], ["true"], ["on"], ["yes"]) else []
    for name, option in OPTIONS.items():
        options += [part for word in words(name) for part in (option, word)]
    return options


def wheels_of(pylock):
    """The packages of a pylock.toml (PEP 751) for one machine, each with the hash of the wheel that pip prefers."""
    import tomllib

    packages = {}
    for package in tomllib.loads(pylock)["packages"]:
        wheels = {unquote(wheel.get("name") or (wheel.get("url") or wheel["path"]).rpartition("/")[2]): wheel["hashes"]
                  for wheel in package["wheels"]}  # fmt: skip
        packages[package["name"]] = Package(package["version"], (wheels[max(wheels, key=preference)]["sha256"],))
    return packages


def preference(wheel):
    """Sort key of wheels that fit a machine: compiled ones, those for one Python, those for the newest C library."""
    python, abi, platforms = wheel.removesuffix(".whl").split("-")[-3:]
    tags = re.findall(r"manylinux(?:\d+|_2_\d+)", platforms)
    libraries = [LEGACY.get(tag) or int(tag.split("_")[2]) for tag in tags]
    return platforms != "any", abi not in ("abi3", "none"), max(libraries, default=0), python

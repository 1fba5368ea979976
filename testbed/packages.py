"""What the testbed needs from the distribution, and how it gets there."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.layout import TestbedError
from testbed.progress import run, step

#: Directories that daemons live in and an ordinary user's PATH may lack.
SYSTEM_PATH = os.pathsep.join(
    [
        os.environ.get("PATH", os.defpath),
        *(str(Path(client).parent.parent / "sbin") for client in [shutil.which("srun")] if client),
        "/usr/sbin",
        "/sbin",
    ]
)

#: A command, and the Debian package that has it; without these there is no cluster.
CLUSTER_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
}
#: Without these the cluster has no container runtime, and the venv modules remain.
CONTAINER_PACKAGES = {
    "mksquashfs": "squashfs-tools",
    "squashfuse": "squashfuse",
    "newuidmap": "uidmap",
    "fuse2fs": "fuse2fs",
    "mmdebstrap": "mmdebstrap",
    "patchelf": "patchelf",
}
#: Without these Apptainer works, but prints "INFO: gocryptfs not found, ..." when an ordinary user starts it. They are
#: installed only together with others.
SILENCING_PACKAGES = {"gocryptfs": "gocryptfs"}
#: Without these the tests and benchmarks that need them are left out. A Debian package, the names of its command,
#: its own first, and what that says with `--version`: either MPI can be `mpirun`.
OPTIONAL_PACKAGES = {
    "openmpi-bin": (("mpirun.openmpi", "mpirun"), "open-mpi.org"),
    "mpich": (("mpiexec.hydra", "mpiexec"), "HYDRA"),
    "valgrind": (("valgrind",), "valgrind"),
    "docker-registry": (("docker-registry",), "docker/distribution"),
    "skopeo": (("skopeo",), "skopeo"),
    "g++": (("g++",), "Free Software Foundation"),
    "make": (("make",), "GNU Make"),
    "strace": (("strace",), "strace -- version"),
}
#: The same for a package without a command: a file of it, below the root directory.
OPTIONAL_FILES = {"libopenmpi-dev": "usr/lib/*/openmpi/include/mpi.h"}
ROOT = Path("/")
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_MARK = "# for the time that the PyTorch testbed installs packages"
LMOD_INIT_FILES = ("/usr/share/lmod/lmod/init/profile", "/opt/apps/lmod/lmod/init/profile")


def find_command(name):
    """The path of a command, daemons included, or None."""
    return shutil.which(name, path=SYSTEM_PATH)


def find_optional(package):
    """The path of the command or the file of an optional package, whoever installed it, or None."""
    if package in OPTIONAL_FILES:
        return next(map(str, ROOT.glob(OPTIONAL_FILES[package])), None)
    names, mark = OPTIONAL_PACKAGES[package]
    for path in filter(None, map(find_command, names)):
        answer = subprocess.run(
            [path, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if mark in answer.stdout:
            return path
    return None


def find_lmod():
    """Lmod's shell initialisation file: of the Lmod in use, else of the distribution's."""
    candidates = [Path(file) for file in LMOD_INIT_FILES]
    if os.environ.get("LMOD_PKG"):
        candidates.insert(0, Path(os.environ["LMOD_PKG"]) / "init" / "profile")
    return next((file for file in candidates if file.is_file()), None)


def missing_packages(wanted):
    """The packages among `wanted` (command -> package) whose command is not there."""
    return sorted({package for command, package in wanted.items() if not find_command(command)})


def privilege():
    """The command prefix that makes apt-get work, or None where nothing does."""
    if not find_command("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if find_command("sudo"):
        permitted = subprocess.run(
            ["sudo", "-n", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        if permitted.returncode == 0:
            return ["sudo", "-n"]
    return None


def install_venv(layout):
    """Install Python's venv module where the distribution splits it off."""
    if not venv_works():
        install(layout, ["python3-venv"])


def install_cluster(layout):
    """Install what is missing for a cluster, and for containers as far as this user can."""
    wanted = missing_packages(CLUSTER_PACKAGES) + ([] if find_lmod() else ["lmod"])
    optional = missing_packages(CONTAINER_PACKAGES)
    if wanted or (optional and privilege() is not None):
        install(layout, wanted + optional + missing_packages(SILENCING_PACKAGES))


def install_optional(layout):
    """Install what is missing of `OPTIONAL_PACKAGES`; return why that was not possible, or None."""
    wanted = [package for package in (*OPTIONAL_PACKAGES, *OPTIONAL_FILES) if not find_optional(package)]
    try:
        if wanted:
            install(layout, wanted)
    except TestbedError as error:
        return str(error)
    return None


def install(layout, packages):
    """Install packages, or raise TestbedError with the one command that an administrator runs."""
    prefix = privilege()
    if prefix is None:
        raise TestbedError(
            "Packages are missing that only an administrator can install: "
            f"`apt-get install {' '.join(packages)}` (or their like); then try again."
        )
    apt_install(layout, prefix, packages)


def apt_install(layout, prefix, packages):
    """Install `packages` without starting any of their services."""
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    log = layout.root / "log" / "apt.log"
    advice = "Install them by hand and try again."
    with layout.locked("packages"), step(f"installing {', '.join(packages)}"), services_kept_off(prefix):
        run([*quiet, "update"], log=log, advice="Is the package archive reachable?")
        run([*quiet, "install", "--no-install-recommends", *packages], log=log, advice=advice)


@contextlib.contextmanager
def services_kept_off(prefix):
    """Forbid package scripts to start daemons (Debian's policy-rc.d): the testbed runs its own."""
    ours = not POLICY.exists() or POLICY_MARK in POLICY.read_text()  # one that an end by force left behind
    if ours:
        text = f"#!/bin/sh\n{POLICY_MARK}\nexit 101\n"
        run([*prefix, "sh", "-c", 'printf %s "$1" > "$2" && chmod 755 "$2"', "sh", text, POLICY])
    try:
        yield
    finally:
        if ours:
            run([*prefix, "rm", "-f", POLICY])


def venv_works():
    """Whether this Python can make virtual environments (Debian splits that off)."""
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0

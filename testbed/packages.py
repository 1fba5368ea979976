"""Finds the distribution's packages that the testbed needs, and installs missing ones."""

import contextlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from testbed.layout import TestbedError
from testbed.progress import run, step

#: PATH with the directories of daemons, which an ordinary user's PATH may lack.
SYSTEM_PATH = os.pathsep.join(
    [
        os.environ.get("PATH", os.defpath),
        *(str(Path(client).parent.parent / "sbin") for client in [shutil.which("srun")] if client),
        "/usr/sbin",
        "/sbin",
    ]
)

#: Debian packages and a command, or a file, of each. The cluster needs them.
CLUSTER_PACKAGES = {
    "munge": "munged",
    "slurm-client": "srun",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "util-linux": "unshare",
}
#: Containers need them; venv modules do not.
CONTAINER_PACKAGES = {
    "fuse2fs": "fuse2fs",
    "mmdebstrap": "mmdebstrap",
    "patchelf": "patchelf",
    "squashfs-tools": "mksquashfs",
    "squashfuse": "squashfuse",
    "uidmap": "newuidmap",
}
#: Apptainer prints "INFO: gocryptfs not found, ..." when an ordinary user runs it without them. Installed only together
#: with other packages.
SILENCING_PACKAGES = {"gocryptfs": "gocryptfs"}
#: Some tests and benchmarks need them and are skipped without.
OPTIONAL_PACKAGES = {
    "openmpi-bin": "mpirun.openmpi",
    "libopenmpi-dev": "/usr/lib/*/openmpi/include/mpi.h",
    "mpich": "mpiexec.hydra",
    "valgrind": "valgrind",
    "podman": "podman",
    "runc": "runc",
    "g++": "g++",
    "make": "make",
    "strace": "strace",
}
#: The thorough test of the documentation site needs it.
BROWSER_PACKAGES = {"chromium": "chromium"}
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_MARK = "# while the PyTorch testbed installs packages"
LMOD_INIT_FILES = ("/usr/share/lmod/lmod/init/profile", "/opt/apps/lmod/lmod/init/profile")


def find_command(name):
    """Return the path of a command or daemon, or of the first file of an absolute pattern, or None."""
    if name.startswith("/"):
        return next(map(str, Path("/").glob(name[1:])), None)
    return shutil.which(name, path=SYSTEM_PATH)


def find_optional(package):
    """Return the path of the command or file of an optional package, or None."""
    return find_command(OPTIONAL_PACKAGES[package])


def find_lmod():
    """Return Lmod's shell initialisation file: of the Lmod in use, else of the distribution's, or None."""
    candidates = [Path(file) for file in LMOD_INIT_FILES]
    if os.environ.get("LMOD_PKG"):
        candidates.insert(0, Path(os.environ["LMOD_PKG"]) / "init" / "profile")
    return next((file for file in candidates if file.is_file()), None)


def missing_packages(wanted):
    """Return the packages of `wanted` (package -> command) whose command is missing."""
    return [package for package, command in wanted.items() if not find_command(command)]


def privilege():
    """Return the command prefix with which apt-get may install, or None if there is none."""
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
    """Install Python's venv module if it is missing; Debian packages it separately."""
    if not importlib.util.find_spec("ensurepip"):
        install(layout, ["python3-venv"])


def install_cluster(layout):
    """Install what is missing for the cluster, and for containers if this user may install packages."""
    wanted = missing_packages(CLUSTER_PACKAGES) + ([] if find_lmod() else ["lmod"])
    optional = missing_packages(CONTAINER_PACKAGES)
    if wanted or (optional and privilege() is not None):
        install(layout, wanted + optional + missing_packages(SILENCING_PACKAGES))


def install_optional(layout, wanted):
    """Install what is missing of `wanted` (package -> command); return why that failed, or None."""
    missing = missing_packages(wanted)
    try:
        if missing:
            install(layout, missing)
    except TestbedError as error:
        return str(error)
    return None


def install(layout, packages):
    """Install packages without starting their services, or raise TestbedError with the command for an administrator."""
    prefix = privilege()
    if prefix is None:
        raise TestbedError(
            "Packages are missing, and only an administrator can install them: "
            f"`apt-get install {' '.join(packages)}` or the equivalent. Then try again."
        )
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    log = layout.root / "log" / "apt.log"
    with layout.locked("packages"), step(f"installing {', '.join(packages)}"), services_kept_off(prefix):
        run([*quiet, "update"], log=log, advice="Check that the package archive is reachable.")
        command = [*quiet, "install", "--no-install-recommends", *packages]
        run(command, log=log, advice="Install them manually and try again.")


@contextlib.contextmanager
def services_kept_off(prefix):
    """Prevent package scripts from starting daemons (Debian's policy-rc.d); the testbed runs its own."""
    ours = not POLICY.exists() or POLICY_MARK in POLICY.read_text()  # an interrupted installation may have left it
    if ours:
        text = f"#!/bin/sh\n{POLICY_MARK}\nexit 101\n"
        run([*prefix, "sh", "-c", 'printf %s "$1" > "$2" && chmod 755 "$2"', "sh", text, POLICY])
    try:
        yield
    finally:
        if ours:
            run([*prefix, "rm", "-f", POLICY])

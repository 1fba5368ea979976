"""Finds the distribution's packages that the testbed needs, and installs missing ones."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
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

#: Commands and their Debian packages. The cluster needs them.
CLUSTER_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
}
#: Containers need them; venv modules do not.
CONTAINER_PACKAGES = {
    "mksquashfs": "squashfs-tools",
    "squashfuse": "squashfuse",
    "newuidmap": "uidmap",
    "fuse2fs": "fuse2fs",
    "mmdebstrap": "mmdebstrap",
    "patchelf": "patchelf",
}
#: Apptainer prints "INFO: gocryptfs not found, ..." when an ordinary user runs it without them. Installed only together
#: with other packages.
SILENCING_PACKAGES = {"gocryptfs": "gocryptfs"}
#: Some tests and benchmarks need them and are skipped without. A Debian package: the names of its command, its own name
#: first, and what the command prints with `--version`, as `mpirun` may belong to either MPI.
OPTIONAL_PACKAGES = {
    "openmpi-bin": (("mpirun.openmpi", "mpirun"), "open-mpi.org"),
    "mpich": (("mpiexec.hydra", "mpiexec"), "HYDRA"),
    "valgrind": (("valgrind",), "valgrind"),
    "podman": (("podman",), "podman version"),
    "runc": (("runc",), "runc version"),
    "g++": (("g++",), "Free Software Foundation"),
    "make": (("make",), "GNU Make"),
    "strace": (("strace",), "strace -- version"),
}
#: The thorough test of the documentation site needs it.
BROWSER_PACKAGES = {"chromium": "chromium"}
#: Optional packages without a command: one of their files, relative to the root directory.
OPTIONAL_FILES = {
    "libopenmpi-dev": "usr/lib/*/openmpi/include/mpi.h",
}
ROOT = Path("/")
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_MARK = "# while the PyTorch testbed installs packages"
#: How long the lists of packages stay current after apt has updated them.
UPDATE_SECONDS = 3600
LMOD_INIT_FILES = ("/usr/share/lmod/lmod/init/profile", "/opt/apps/lmod/lmod/init/profile")


def find_command(name):
    """Return the path of a command or daemon, or None."""
    return shutil.which(name, path=SYSTEM_PATH)


def find_optional(package):
    """Return the path of the command or file of an optional package, however it was installed, or None."""
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
    """Return Lmod's shell initialisation file: of the Lmod in use, else of the distribution's, or None."""
    candidates = [Path(file) for file in LMOD_INIT_FILES]
    if os.environ.get("LMOD_PKG"):
        candidates.insert(0, Path(os.environ["LMOD_PKG"]) / "init" / "profile")
    return next((file for file in candidates if file.is_file()), None)


def missing_packages(wanted):
    """Return the packages of `wanted` (command -> package) whose command is missing."""
    return sorted({package for command, package in wanted.items() if not find_command(command)})


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
    if not venv_works():
        install(layout, ["python3-venv"])


def install_cluster(layout):
    """Install what is missing for the cluster, and for containers if this user may install packages."""
    wanted = missing_packages(CLUSTER_PACKAGES) + ([] if find_lmod() else ["lmod"])
    optional = missing_packages(CONTAINER_PACKAGES)
    if wanted or (optional and privilege() is not None):
        install(layout, wanted + optional + missing_packages(SILENCING_PACKAGES))


def install_optional(layout):
    """Install what is missing of the optional packages; return why that failed, or None."""
    return try_install(layout, [name for name in (*OPTIONAL_PACKAGES, *OPTIONAL_FILES) if not find_optional(name)])


def install_browser(layout):
    """Install the browser if it is missing; return why that failed, or None."""
    return try_install(layout, missing_packages(BROWSER_PACKAGES))


def try_install(layout, wanted):
    """Install `wanted`, if there are any; return why that failed, or None."""
    try:
        if wanted:
            install(layout, wanted)
    except TestbedError as error:
        return str(error)
    return None


def install(layout, packages):
    """Install packages, or raise TestbedError with the command for an administrator."""
    prefix = privilege()
    if prefix is None:
        raise TestbedError(
            "Packages are missing, and only an administrator can install them: "
            f"`apt-get install {' '.join(packages)}` or the equivalent. Then try again."
        )
    apt_install(layout, prefix, packages)


def apt_install(layout, prefix, packages):
    """Install `packages` without starting their services."""
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    log = layout.root / "log" / "apt.log"
    updated = log.with_name("apt-updated")  # its time is that of the last update that succeeded
    advice = "Install them manually and try again."
    with layout.locked("packages"), step(f"installing {', '.join(packages)}"), services_kept_off(prefix):
        if not (updated.exists() and time.time() - updated.stat().st_mtime < UPDATE_SECONDS):
            run([*quiet, "update"], log=log, advice="Check that the package archive is reachable.")
            updated.touch()
        try:
            run([*quiet, "install", "--no-install-recommends", *packages], log=log, advice=advice)
        except TestbedError:
            updated.unlink()  # the lists may be why
            raise


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


def venv_works():
    """Return whether this Python can create virtual environments."""
    probe = [sys.executable, "-c", "import ensurepip, venv"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0

"""Provides Apptainer: the machine's own, or Debian's package unpacked below the testbed."""

import os
import shutil
from pathlib import Path

from testbed.layout import TestbedError
from testbed.module_systems import download
from testbed.packages import CONTAINER_PACKAGES, SYSTEM_PATH, find_command, install, missing_packages, privilege
from testbed.progress import run, step

FUSE = "Containers need /dev/fuse; ask an administrator for `modprobe fuse; chmod 0666 /dev/fuse`."
#: Debian has no Apptainer package before release 13; that of unstable needs this libc.
UNPACKED_PACKAGES = ("apptainer", "libc6", "libseccomp2", "libsqlite3-0")


def provide(layout):
    """Put ``apptainer`` and ``singularity`` on the testbed's PATH. Raises TestbedError if they cannot run."""
    command = find_runtime(layout) or install_runtime(layout)
    for name in ("apptainer", "singularity"):
        layout.link_command(name, command)
    if os.geteuid() == 0:
        grant_subordinate_ids()


def find_runtime(layout):
    """Return the machine's Apptainer or Singularity, or None; ignore the testbed's own links."""
    path = os.pathsep.join(part for part in SYSTEM_PATH.split(os.pathsep) if Path(part) != layout.bin)
    return shutil.which("apptainer", path=path) or shutil.which("singularity", path=path)


def install_runtime(layout):
    """Install Apptainer from the configured archive, or unpack it from a newer release; return its path."""
    unpacked = layout.apptainer / "usr" / "bin" / "apptainer"
    if unpacked.exists():
        require_unpacking()
        return unpacked
    if not find_command("apt-get"):
        raise TestbedError("apptainer and singularity not found on PATH, nor apt-get. Install Apptainer.")
    candidate = run(["apt-cache", "policy", "apptainer"])
    if privilege() is not None and "Candidate:" in candidate and "(none)" not in candidate:
        install(layout, ["apptainer"])
        return find_command("apptainer")
    require_unpacking()
    with step("unpacking Apptainer from Debian's unstable release"):
        try:
            packages = download(layout.root / "apt", "sid", *UNPACKED_PACKAGES)
        except TestbedError as error:
            raise TestbedError(
                "apptainer and singularity not found on PATH or in this machine's package archive. Install one "
                f"(https://apptainer.org/docs/admin/latest/installation.html). {error}"
            ) from error
        unpack_runtime(layout, packages)
    return unpacked


def require_unpacking():
    """Raise TestbedError if this user cannot unpack Apptainer, or run containers with it."""
    missing = missing_packages(CONTAINER_PACKAGES)
    if missing:
        raise TestbedError(f"Containers need the packages {', '.join(missing)}. Ask an administrator for them.")
    if os.geteuid() != 0 and not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise TestbedError(FUSE)


def unpack_runtime(layout, packages):
    """Unpack Apptainer's packages to `layout.apptainer`, with its own C library.

    Its binaries find the newer libc by RPATH and interpreter, and ``etc`` and ``var`` beside ``lib``.
    """
    new = layout.root / "apptainer.new"
    shutil.rmtree(new, ignore_errors=True)
    for package in packages:
        run(["dpkg-deb", "--extract", package, new])
    usr = new / "usr"
    library = new / "libc"
    library.mkdir()
    triplet = next(path.parent for path in (usr / "lib").glob("*/libc.so.6"))
    for file in triplet.glob("*.so*"):
        shutil.copy2(file, library, follow_symlinks=False)
    loader = next(library.glob("ld-linux*.so.*"))
    (new / "etc").rename(usr / "etc")
    (usr / "var/lib/apptainer/mnt/session").mkdir(parents=True)
    (usr / "lib" / "etc").symlink_to("../etc")
    (usr / "lib" / "var").symlink_to("../var")
    final = layout.apptainer / "libc"
    for binary in [usr / "bin" / "apptainer", *(usr / "lib").glob("*/apptainer/bin/starter")]:
        run(["patchelf", "--force-rpath", "--set-rpath", final, "--set-interpreter", final / loader.name, binary])
    configuration = usr / "etc" / "apptainer" / "apptainer.conf"
    text = configuration.read_text()
    # root lacks a capability of the kernel in some virtual machines
    configuration.write_text(text.replace("root default capabilities = full", "root default capabilities = no"))
    new.rename(layout.apptainer)
    shutil.rmtree(layout.root / "apt")


def grant_subordinate_ids():
    """Give root subordinate ids, which ``apptainer build --fakeroot`` needs, if it has none."""
    for file, option in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        path = Path(file)
        lines = path.read_text().splitlines() if path.exists() else []
        if not any(line.startswith(("root:", "0:")) for line in lines):
            first = max([int(line.split(":")[1]) + int(line.split(":")[2]) for line in lines if line] + [100000])
            run([find_command("usermod"), option, f"{first}-{first + 65535}", "root"])

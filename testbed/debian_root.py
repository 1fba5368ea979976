"""Unpacks packages of another release of Debian with all that they need, and runs commands in this root directory."""

import shutil
import subprocess
from pathlib import Path

from testbed.layout import TestbedError
from testbed.module_systems import read_suite, run_apt
from testbed.packages import find_command

ENTER = Path(__file__).with_name("enter-root")
#: What a shell and Slurm's daemons need besides Slurm. Scripts of packages do not run.
BASE = ("base-files", "bash", "coreutils", "grep", "hostname", "libc-bin", "mount", "python3", "sed", "util-linux")
#: Names that Debian's alternatives would make.
LINKS = {"slurmctld": "slurmctld-wlm", "slurmd": "slurmd-wlm", "slurmstepd": "slurmstepd-wlm"}


def unpack(layout, suite, packages):
    """Unpack packages of a suite, and their dependencies, below the testbed; return the root directory.

    Raises
    ------
    TestbedError
        Why that is not possible on this machine.
    """
    directory = layout.root / f"debian-{suite}"
    root = directory / "root"
    if root.exists():
        return root
    if not (find_command("apt-get") and find_command("dpkg")):
        raise TestbedError(f"Packages of Debian {suite} can be unpacked on Debian and Ubuntu only.")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    status = directory / "status"
    status.touch()  # as if nothing were installed
    options = [*read_suite(directory, suite), "-o", f"Dir::State::status={status}"]
    wanted = ["--no-install-recommends", "--yes", *BASE, *packages]
    # each line: 'address' file size checksum; the file is <package>_<version>_<machine>.deb
    files = run_apt(["apt-get", *options, "--print-uris", "--quiet=2", "install", *wanted]).splitlines()
    names = (line.split()[1].split("_") for line in files)
    exact = [f"{package}={version.replace('%3a', ':')}" for package, version, _ in names]
    run_apt(["apt-get", *options, "download", *exact], directory)
    new = directory / "new"
    # base-files first: it has the links /bin and /lib
    for package in sorted(directory.glob("*.deb"), key=lambda path: not path.name.startswith("base-files_")):
        subprocess.run(["dpkg", "-x", package, new], check=True)
        package.unlink()
    for name, target in LINKS.items():
        if (new / "usr" / "sbin" / target).exists():
            (new / "usr" / "sbin" / name).symlink_to(target)
    (new / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (new / "etc" / "group").write_text("root:x:0:\n")
    new.rename(root)
    return root


def run_in(root, command, *, visible, timeout=600):
    """Run a command in the root directory, with a list of directories of this machine; return the completed process."""
    (root / "etc" / "hosts").write_text(Path("/etc/hosts").read_text())
    return subprocess.run(
        ["unshare", "--mount", ENTER, root, *visible, "--", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )

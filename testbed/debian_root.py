"""Makes a root directory with packages of another release of Debian, and runs commands in it."""

import shutil
import subprocess

from testbed.module_systems import source_line
from testbed.progress import run


def make(layout, suite, packages):
    """Make a root directory of a suite with packages, below the testbed, as root; return it. Raises TestbedError."""
    root = layout.root / f"debian-{suite}"
    with layout.locked(root.name):
        if not root.exists():
            new = layout.root / f"debian-{suite}.new"
            shutil.rmtree(new, ignore_errors=True)  # what a killed process has left
            # it mounts /dev/shm and more of this machine below the new root: in a namespace, so that they end with it
            command = ["unshare", "--mount", "mmdebstrap", "--variant=minbase", f"--include={','.join(packages)}"]
            run([*command, suite, new, source_line(suite)])
            new.rename(root)
    return root


def run_in(root, command, *, visible, timeout=600):
    """Run a command in the root directory, with a list of directories of this machine; return the completed process."""
    shutil.copy("/etc/hosts", root / "etc")
    script = ["mount --make-rprivate /"]
    script.append(f"mount --bind {root} {root}")  # so that its processes can make namespaces of their own, unshare(1)
    for directory in ("/proc", "/sys", "/dev", "/tmp", *visible):  # noqa: S108 (of this machine)
        script.append(f"mkdir -p {root}{directory}; mount --rbind {directory} {root}{directory}")
    script.append(f'exec env -i HOME=/root PATH=/usr/sbin:/usr/bin chroot {root} "$@"')
    return subprocess.run(
        ["unshare", "--mount", "bash", "-e", "-c", "\n".join(script), "bash", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )

# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command of a packed venv where the packed file is mounted; packed.bash calls it.

Arguments: the command and its arguments.

The file ($PYTORCH_PACKED) has the whole installation, and is mounted at the installation's own path, so all paths are
the same. The first task of a step on a node mounts it with mount-packed.bash; the others find such a process of their
user in /proc, and all enter its namespaces with nsenter(1). The mount ends with the last process that uses it. If
nothing can mount, the command runs with the unpacked files.
"""

import os
import sys
import time
from collections import namedtuple
from zlib import crc32

SYSTEM = sys.path
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [HERE]  # for two modules; each name that is looked up costs calls of the shared file system
sys.dont_write_bytecode = True
from pytorch_launch import names, read  # noqa: E402  (from this directory)
from pytorch_launch.launchers import is_first_task_of_node, step_of  # noqa: E402

sys.path = SYSTEM

#: An empty file that only the packed file has, at its root. `packed.bash` tests it too.
MARKER = ".packed"
#: Where Apptainer keeps its own copy of squashfuse, below the prefix of its command (INSTALL.md, "squashfuse_ll").
APPTAINERS = ("libexec/apptainer/bin", "lib/x86_64-linux-gnu/apptainer/bin", "lib/aarch64-linux-gnu/apptainer/bin")
#: For the first task to mount the file; then another task mounts it for itself.
WAIT_SECONDS = 2
#: For the mount; then the command runs unpacked. squashfuse may hang with the file system of the file.
MOUNT_SECONDS = 60

#: Open descriptors of the namespaces of a process: they stay when it ends.
Namespaces = namedtuple("Namespaces", "user mount")


class NotMountedError(Exception):
    """The packed file cannot be mounted; the message has the reason."""


def main(arguments):
    env = os.environ
    root = env.get("CONTAINERROOT", "")
    switch = env.get("PYTORCH_LAUNCH_PACKED") or "1"
    try:
        if switch != "1":
            raise NotMountedError(f"PYTORCH_LAUNCH_PACKED={switch}")
        enter(env["PYTORCH_PACKED"], root, arguments)
    except (NotMountedError, OSError) as error:
        del env["PYTORCH_PACKED"]  # programs that the command starts do not try again
        report(f"not mounted: {error}. Using the unpacked files in {root}", is_loud=switch != "0")
    os.execv(arguments[0], arguments)  # noqa: S606


def report(text, *, is_loud):
    """Print a message, if this process is the first of its step on the node."""
    is_verbose = os.environ.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0")
    if (is_loud or is_verbose) and is_first_task_of_node(os.environ):
        command = os.path.basename(sys.argv[1])
        os.write(2, f"{command}: packed venv {text}\n".encode(errors="backslashreplace"))


def enter(file, root, arguments):
    """Become the command `arguments` with `file` mounted at `root`. Raises NotMountedError, OSError."""
    name = mount_name(file, root)
    namespaces = find_mount(name, root)
    if namespaces is None:
        program = find_squashfuse()
        namespaces = wait_for_mount(name, root) or mount(program, file, root, name)
    for descriptor in namespaces:
        os.set_inheritable(descriptor, True)
    places = [f"--user=/proc/self/fd/{namespaces.user}", f"--mount=/proc/self/fd/{namespaces.mount}"]
    # nsenter starts in the root directory of the namespace
    change = ["/bin/sh", "-c", 'cd -- "$0" && exec "$@"', os.getcwd()]
    os.execvp("nsenter", ["nsenter", *places, "--preserve-credentials", *change, *arguments])  # noqa: S606, S607


def mount_name(file, root):
    """The name of a mount for processes that see the same files, and whose servers end with the same step."""
    step = step_of(os.environ) or read("/proc/self/cgroup")
    namespaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "user")]
    return f"{crc32(os.fsencode(f'{file} {root} {step} {namespaces}')):08x}"


def wait_for_mount(name, root):
    """The Namespaces of the first task's mount; None if this is the first task, or there is no mount after a limit."""
    if not is_first_task_of_node(os.environ):
        for _ in range(20 * WAIT_SECONDS):
            namespaces = find_mount(name, root)
            if namespaces:
                return namespaces
            time.sleep(0.05)
    return None


def find_mount(name, root):
    """The Namespaces of a process of this user with the mount `name`, None without one."""
    for process in [f"/proc/{number}" for number in names("/proc") if number.isdigit()]:
        try:
            if os.stat(process).st_uid == os.getuid() and f"@{name}-" in (read(f"{process}/mounts") or ""):
                namespaces = open_namespaces(process)
                mounts = read(f"{process}/mounts") or ""  # none if it has ended
                is_own = f"@{name}-{os.fstat(namespaces.mount).st_ino} " in mounts
                if is_own:
                    os.open(f"{process}/root{root}/{MARKER}", os.O_RDONLY)  # OSError if the server has ended
                    return namespaces
        except OSError:  # it ends, or belongs to a container
            continue
    return None


def open_namespaces(process):
    return Namespaces(os.open(f"{process}/ns/user", os.O_RDONLY), os.open(f"{process}/ns/mnt", os.O_RDONLY))


def mount(program, file, root, name):
    """Mount `file` at `root` in new namespaces; return these. Raises NotMountedError, OSError."""
    import select  # which tasks that find a mount do not need
    import subprocess

    command = ["bash", f"{HERE}/mount-packed.bash", program, file, root, name]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **pipes) as process:
        answer = b""
        if select.select([process.stdout], [], [], MOUNT_SECONDS)[0]:
            answer = process.stdout.readline()
        if answer == b"mounted\n":
            namespaces = open_namespaces(f"/proc/{process.pid}")
            report(f"{file} mounted at {root}", is_loud=False)
            return namespaces
        process.kill()
    raise NotMountedError(answer.decode(errors="replace").strip() or f"no answer within {MOUNT_SECONDS} s")


def find_squashfuse():
    """The path of squashfuse: that of the host, or Apptainer's. Raises NotMountedError."""
    from shutil import which  # which tasks that find a mount do not need

    found = which("squashfuse_ll") or which("squashfuse")
    if not found:
        prefix = os.path.realpath(which("apptainer") or "").rpartition("/bin/")[0]
        found = which("squashfuse_ll", path=":".join(f"{prefix}/{place}" for place in APPTAINERS))
    if not found:
        raise NotMountedError("squashfuse not found on PATH or in Apptainer")
    return found


if __name__ == "__main__":
    main(sys.argv[1:])

"""Runs a command of a packed venv in a namespace where the packed file is mounted; started by packed.bash.

Arguments: the descriptor that it was read from, the directory of this file, the command and its arguments.

The file ($PYTORCH_PACKED) has the whole installation, and is mounted at the installation's own path, so all paths are
the same. One process of each step and node mounts it; the others join the namespace of that process. The mount ends
with the last process that uses it. If nothing can mount, the command runs with the unpacked files.
This is one file: a rank opens few files on the shared file system.
"""

import _signal  # `signal` and `socket` cost as much as all of this
import ctypes
import os
import sys
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket, socketpair
from itertools import chain
from zlib import crc32

NEWNS, NEWUSER = 0x00020000, 0x10000000  # CLONE_* of unshare(2)
FOLLOWING = 0x4000 | 0x80000  # MS_REC | MS_SLAVE of mount(2): file systems that the host mounts later appear
READ_ONLY = 1 | 2 | 4  # MS_RDONLY | MS_NOSUID | MS_NODEV
#: An empty file that only the packed file has, at its root. `packed.bash` tests it too.
MARKER = ".packed"
#: Where Apptainer keeps its own copy of squashfuse, below the prefix of its command (INSTALL.md, "squashfuse_ll").
APPTAINERS = ("libexec/apptainer/bin", "lib/x86_64-linux-gnu/apptainer/bin", "lib/aarch64-linux-gnu/apptainer/bin")
LOCAL_RANKS = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")
#: For the process that mounts the file; then each process mounts it by itself.
JOIN_SECONDS = 60
libc = ctypes.CDLL(None, use_errno=True)


def main(_, __, *arguments):
    """Become the command, in the namespace if possible."""
    env = os.environ
    file, root = env["PYTORCH_PACKED"], env.get("CONTAINERROOT", "")
    is_off, is_loud = env.get("PYTORCH_LAUNCH_PACKED") == "0", env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0")
    try:
        if is_off:
            raise NotMountedError("PYTORCH_LAUNCH_PACKED=0")
        how = enter(file, root)
        if is_loud and is_first():
            print_message(arguments[0], f"packed venv: {file} mounted by {how}")
    except (NotMountedError, OSError) as error:
        del env["PYTORCH_PACKED"]  # programs that the command starts do not try again
        if is_first() and (is_loud or not is_off):
            print_message(arguments[0], f"packed venv not mounted: {error}. Using the unpacked files in {root}")
    os.execv(arguments[0], arguments)  # noqa: S606


def connect(name, seconds):
    """A connection to the process at an abstract name, and its number, None for another user's. Raises OSError."""
    end = socket(AF_UNIX, SOCK_STREAM)
    end.settimeout(seconds)
    end.connect(name)
    pid, uid, _ = credentials(end)
    return end, pid if uid == os.getuid() else None


def credentials(end):
    """The process, the user and the group at the other end of a unix socket, confirmed by the kernel (unix(7))."""
    return memoryview(end.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)).cast("i")  # struct ucred


class NotMountedError(Exception):
    """The packed file cannot be mounted; the message has the reason."""


def is_first():
    """Whether this process reports for its node."""
    return all(os.environ.get(name, "0") == "0" for name in LOCAL_RANKS)


def print_message(command, text):
    """Write one line to standard error, if it is open."""
    try:
        os.write(2, f"{os.path.basename(command)}: {text}\n".encode())
    except OSError:
        return


def enter(file, root):
    """Enter a namespace with `file` mounted at `root`; return the program. Raises NotMountedError, OSError."""
    directory, name = os.getcwd(), mount_name(file)
    claim, how, deadline = socket(AF_UNIX, SOCK_STREAM), None, time.monotonic() + JOIN_SECONDS
    while how is None and claim.fileno() >= 0:
        try:
            claim.bind(name)
            break
        except OSError:  # another process mounts the file, or has mounted it
            time.sleep(0.005)
        try:
            join(listener(name), name)
            how = "the first process of this node"
        except OSError as error:
            # not to be shared: of another user, or its process has ended and left the name to a child
            if not isinstance(error, ConnectionRefusedError) or time.monotonic() > deadline:
                claim.close()
    if how is None:
        try:
            how = mount(file, root)
        except (NotMountedError, OSError):
            claim.close()  # the other ranks do not wait for this one
            raise
        if claim.fileno() >= 0:
            claim.listen(4096)
            os.set_inheritable(claim.detach(), True)  # stays open in the program, whose end frees the name
    os.chdir(directory)
    return how


def mount_name(file):
    """The name, among abstract sockets (unix(7)), of a mount of `file` whose owner ends together with this process."""
    found = os.stat(file)
    step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    if step.endswith("."):
        with open("/proc/self/cgroup", "rb") as groups:
            step += f"{crc32(groups.read()):x}"
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("mnt", "user")]
    numbers = (*namespaces, found.st_dev, found.st_ino, found.st_mtime_ns)
    return f"\0pytorch-packed/{os.getuid()}/{step}/" + "-".join(f"{number:x}" for number in numbers)


def listener(name):
    """The number of this user's process that listens at `name`. Raises OSError."""
    end, pid = connect(name, 0)
    end.close()
    if not pid:
        raise PermissionError("the owner of the mount is not visible")
    return pid


def join(pid, name=None):
    """Join the namespaces of a process, which listens at `name`; raise OSError, before the first, if it has ended."""
    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "mnt")]
    if name is not None and listener(name) != pid:
        raise ProcessLookupError("the owner of the mount has ended")  # and another process may have its number
    for descriptor in descriptors:
        call("setns", descriptor, 0)
        os.close(descriptor)


def mount(file, root):
    """Mount `file` at `root` in new namespaces and join them; return the program. Raises NotMountedError."""
    program = find_squashfuse(root)  # then a child makes the namespaces: if it fails, this process is as it was
    ours, its = socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            make_namespaces(program, file, root)
            its.send(b"mounted")
            its.recv(1)  # until the parent has joined, or ended
        except BaseException as error:  # noqa: BLE001  (whatever it is, the parent reports it)
            its.send(str(error).encode())
        os._exit(0)
    its.close()
    try:
        answer = ours.recv(4096).decode(errors="replace")
        if answer != "mounted":
            raise NotMountedError(answer or "the process that mounts it was killed")
        join(child)
    finally:
        ours.close()
        os.waitpid(child, 0)
    return f"{program} in a user namespace"


def find_squashfuse(root):
    """The path of squashfuse: that of the host, or Apptainer's. Raises NotMountedError."""
    directories = [path for path in os.environ.get("PATH", "").split(":") if path and not path.startswith(root)]
    prefixes = (os.path.realpath(f"{directory}/apptainer").rpartition("/bin/")[0] for directory in directories)
    own = (f"{prefix}/{directory}/squashfuse_ll" for prefix in prefixes for directory in APPTAINERS)
    hosts = (f"{directory}/{name}" for name in ("squashfuse_ll", "squashfuse") for directory in directories)
    for path in chain(hosts, own):
        if os.access(path, os.X_OK):
            return path
    raise NotMountedError("squashfuse not found on PATH or in Apptainer")


def make_namespaces(program, file, root):
    """Enter new namespaces of users and of mounts, and mount `file` there. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    # in the new namespace, no process can open what another one has open (user_namespaces(7))
    source = os.open(file, os.O_RDONLY)
    call("unshare", NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as table:
            table.write(text)
    device = os.open("/dev/fuse", os.O_RDWR)
    started, start = os.pipe()
    # it stays out of the namespace of mounts, which ends with the last program in it; then the kernel closes the device
    if os.fork() == 0:
        os.close(start)
        os.read(started, 1)
        become_server(program, source, device)
    call("unshare", NEWNS)
    call("mount", b"none", b"/", None, FOLLOWING, None)
    options = f"fd={device},rootmode=40000,user_id={user},group_id={group}"
    call("mount", file.encode(), root.encode(), b"fuse.squashfuse", READ_ONLY, options.encode())
    for descriptor in (device, start, source):
        os.close(descriptor)
    try:
        os.stat(f"{root}/{MARKER}")
    except OSError as error:
        raise OSError(error.errno, f"{program} cannot read {file}: {error.strerror}") from error


def become_server(program, source, device):
    """Become the program that serves a mount: on all cores, without a terminal, whatever signals its step receives."""
    try:
        os.setsid()
        for number in range(1, _signal.NSIG):
            if number not in (_signal.SIGKILL, _signal.SIGSTOP, _signal.SIGCHLD):
                _signal.signal(number, _signal.SIG_IGN)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    except OSError:
        pass  # it serves more slowly, or ends with a signal
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    low, high = sorted((device, source))
    for first, end in ((3, low), (low + 1, high), (high + 1, 65536)):
        os.closerange(first, end)
    for descriptor in (device, source):
        os.set_inheritable(descriptor, True)
    os.execv(program, [program, "-f", f"/proc/self/fd/{source}", f"/dev/fd/{device}"])  # noqa: S606


def call(name, *arguments):
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

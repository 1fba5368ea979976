"""Runs a command of a packed venv in a namespace where the packed file is mounted; started by launch.bash.

usage: python3 -I -S /dev/fd/N RUNSCRIPTS COMMAND [ARGUMENTS...]    # RUNSCRIPTS is the directory of this file

The file ($PYTORCH_PACKED) has the whole installation, and is mounted at the installation's own path, so all paths are
the same. One process of each step and node mounts it; the others join the namespace of that process. The mount ends
with the last process that uses it. If nothing can mount, the command runs with the unpacked files.

This is one file, and reads only the host's Python: a rank opens few files on the shared file system.
"""

import _signal  # `signal` and `socket` cost as much as all of this
import ctypes
import errno
import os
import sys
import time
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET, socket
from zlib import crc32

NEWNS, NEWUSER = 0x00020000, 0x10000000  # CLONE_* of unshare(2)
PRIVATE = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE of mount(2)
READ_ONLY = 1 | 2 | 4  # MS_RDONLY | MS_NOSUID | MS_NODEV
#: An empty file that only the packed file has, at its root. `launch.bash` tests it too.
MARKER = ".packed"
#: Where Apptainer keeps its own copy of squashfuse, below the prefix of its command (INSTALL.md, "squashfuse_ll").
APPTAINERS = ("libexec/apptainer/bin", "lib/x86_64-linux-gnu/apptainer/bin", "lib/aarch64-linux-gnu/apptainer/bin")
LOCAL_RANKS = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID",
               "FLUX_TASK_LOCAL_ID")  # fmt: skip
#: For the process that mounts the file; then each process mounts it by itself.
JOIN_SECONDS = 60
#: For a node's copy to be announced (pytorch_stage), and to be complete.
APPEAR_SECONDS, COPY_SECONDS = 20, 3600
libc = ctypes.CDLL(None, use_errno=True)


def main(descriptor, runscripts, *arguments):
    """Become the command, in the namespace if possible; `descriptor` is the open file of this program."""
    os.close(descriptor)
    file, root = os.environ["PYTORCH_PACKED"], os.environ.get("CONTAINERROOT", "")
    is_loud = os.environ.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0")
    try:
        if os.environ.get("PYTORCH_LAUNCH_PACKED") == "0":
            raise NotMountedError("PYTORCH_LAUNCH_PACKED=0")
        if os.environ.get("PYTORCH_LAUNCH_STAGE", "0") not in ("", "0") and file.startswith(f"{root}/"):
            file = staged(runscripts, root, arguments) or file
            if not file.startswith(root) and os.path.isdir(file):
                raise NotMountedError("nothing on this node can mount it")
        how = enter(file, root)
        if is_loud and is_first():
            say(arguments[0], f"packed venv: {file} mounted by {how}")
    except (NotMountedError, OSError) as error:
        if is_in_step() and os.environ.get("PYTORCH_LAUNCH_STAGE") != "0" != os.environ.get("PYTORCH_LAUNCH_PACKED"):
            staged(runscripts, root, arguments, str(error))
        # programs that the command starts do not try again
        del os.environ["PYTORCH_PACKED"]
        if is_first() and (is_loud or os.environ.get("PYTORCH_LAUNCH_PACKED") != "0"):
            say(arguments[0], f"packed venv not mounted: {error}. Using the unpacked files in {root}")
    os.execv(arguments[0], arguments)  # noqa: S606


def is_in_step():
    """Whether this process is a task of a Slurm step, whose job can keep a copy on its nodes."""
    return "SLURM_STEP_ID" in os.environ and "SLURM_JOB_ID" in os.environ


def staged(runscripts, root, arguments, why=None):
    """The path of this node's copy, staged by the first rank, else None; with `why`, run the command unpacked there."""
    if not is_in_step() and "PYTORCH_STAGE_JOB" not in os.environ:
        return None
    with open(f"{root}/provenance/packed.json") as record:
        sha256 = record.read().partition('"sha256": "')[2].partition('"')[0]
    deadline = time.monotonic() + APPEAR_SECONDS
    is_starter = is_in_step() and os.environ.get("SLURM_PROCID") == "0"
    path = ask(service(os.environ, sha256), COPY_SECONDS)
    while path is None and not is_starter and time.monotonic() < deadline:
        time.sleep(0.05)
        path = ask(service(os.environ, sha256), COPY_SECONDS)
    if not path and is_starter or why:
        sys.path.insert(0, os.path.abspath(runscripts))
        from pytorch_stage import rank

        path = path or rank.stage(os.environ, lambda text: say(arguments[0], text))
        if why and path:
            rank.run_unpacked(path, root, arguments, lambda text: is_first() and say(arguments[0], f"{text} ({why})"))
    return path or None


def service(env, sha256, role="node"):
    """The name, among abstract sockets, where this job's copy of a file on this node is announced."""
    job = env.get("PYTORCH_STAGE_JOB") or env.get("SLURM_JOB_ID", "none")
    node = env.get("SLURMD_NODENAME") or os.uname().nodename
    return f"\0pytorch-stage/{os.getuid()}/{job[:20]}/{node[:30]}/{role}/{sha256[:16]}"


def ask(name, seconds, *, is_here=True):
    """The path that this user's process announces at `name`, "" if it has none; None without such a process.

    Waits, at most `seconds`, while it is copying. The path exists, unless it is one of other nodes (not `is_here`).
    """
    end = socket(AF_UNIX, SOCK_STREAM)
    end.settimeout(seconds)
    try:
        end.connect(name)
        if credentials(end)[1] != os.getuid():
            return None
        path = end.recv(4096).decode().rstrip("\n")
        return path if path and (not is_here or os.path.exists(path)) else ""
    except ConnectionRefusedError:
        return None
    except OSError:
        return ""
    finally:
        end.close()


def credentials(end):
    """The process, the user and the group at the other end of a unix socket, confirmed by the kernel (unix(7))."""
    return memoryview(end.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)).cast("i")  # struct ucred


class NotMountedError(Exception):
    """The packed file cannot be mounted; the message has the reason."""


def is_first():
    """Whether this process reports for its node."""
    return all(os.environ.get(name, "0") == "0" for name in LOCAL_RANKS)


def say(command, text):
    """Write one line to standard error, if it is open."""
    try:
        os.write(2, f"{os.path.basename(command)}: {text}\n".encode())
    except OSError:
        return


def enter(file, root):
    """Enter a namespace with `file` mounted at `root`; return the program that mounts it.

    Raises NotMountedError, and OSError if there is no such file.
    """
    directory = os.getcwd()
    name = mount_name(file)
    claim = socket(AF_UNIX, SOCK_STREAM)
    how = None
    deadline = time.monotonic() + JOIN_SECONDS
    while not bind(claim, name) and time.monotonic() < deadline:
        try:
            owner = listener(name)
            if owner is None:
                time.sleep(0.005)
                continue
            join(owner, lambda: listener(name) == owner)  # noqa: B023  (called at once)
            how = "the first process of this node"
        except OSError:  # not to be shared: of another user, or its process has ended and left the name to a child
            claim.close()
        break
    if how is None:
        how = mount(file, root)
        if claim.fileno() >= 0:
            claim.listen(4096)
            os.set_inheritable(claim.detach(), True)  # stays open in the program, whose end frees the name
    os.chdir(directory)
    return how


def bind(claim, name):
    """Bind a socket to an abstract name; return whether it was free."""
    try:
        claim.bind(name)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def mount_name(file):
    """The name, among abstract sockets (unix(7)), of the mount of `file` that this process can share.

    What ends the owner of the mount must end its users as well: a Slurm step, or a control group. They see the same
    mounts otherwise. The file is the same, by its place and time.
    """
    found = os.stat(file)
    step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    if step.endswith("."):
        with open("/proc/self/cgroup", "rb") as groups:
            step += f"{crc32(groups.read()):x}"
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("mnt", "user")]
    numbers = (*namespaces, found.st_dev, found.st_ino, found.st_mtime_ns)
    return f"\0pytorch-packed/{os.getuid()}/{step}/" + "-".join(f"{number:x}" for number in numbers)


def listener(name):
    """The number of this user's process that listens at `name`; None if it does not listen yet.

    Raises OSError if it is another user's, or in another process namespace.
    """
    end = socket(AF_UNIX, SOCK_STREAM)
    end.setblocking(False)
    try:
        end.connect(name)
        pid, uid, _ = credentials(end)
    except ConnectionRefusedError:
        return None
    finally:
        end.close()
    if uid != os.getuid() or not pid:
        raise PermissionError(errno.EPERM, "the owner of the mount is not visible")
    return pid


def join(pid, is_alive):
    """Join the namespaces of a process; raise OSError, before the first, if it has ended."""
    descriptors = []
    try:
        for kind in ("user", "mnt"):
            descriptors.append(os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY))
        if not is_alive():  # another process may have its number
            raise ProcessLookupError(errno.ESRCH, "the owner of the mount has ended")
        for descriptor in descriptors:
            call("setns", descriptor, 0)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def mount(file, root):
    """Mount `file` at `root` in new namespaces and join them; return the program. Raises NotMountedError.

    A child makes the namespaces: if it fails, this process is as it was.
    """
    program = find_squashfuse(root)
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        try:
            make_namespaces(program, file, root)
            os.write(to_parent, b"mounted")
            os.read(from_parent, 1)  # until the parent has joined, or ended
        except BaseException as error:  # noqa: BLE001  (whatever it is, the parent reports it)
            os.write(to_parent, str(error).encode())
        os._exit(0)
    os.close(to_parent)
    os.close(from_parent)
    try:
        answer = os.read(from_child, 4096).decode(errors="replace")
        if answer != "mounted":
            raise NotMountedError(answer or "the process that mounts it was killed")
        join(child, lambda: True)
    finally:
        os.close(to_child)
        os.close(from_child)
        os.waitpid(child, 0)
    return f"{program} in a user namespace"


def find_squashfuse(root):
    """The path of squashfuse: that of the host, or Apptainer's. Raises NotMountedError."""
    directories = [path for path in os.environ.get("PATH", "").split(":") if path and not path.startswith(root)]
    for path in (f"{directory}/{name}" for name in ("squashfuse_ll", "squashfuse") for directory in directories):
        if os.access(path, os.X_OK):
            return path
    for directory in directories:
        prefix = os.path.realpath(f"{directory}/apptainer").rpartition("/bin/")[0]
        for path in (f"{prefix}/{inside}/squashfuse_ll" for inside in APPTAINERS):
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
    call("mount", b"none", b"/", None, PRIVATE, None)
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
    copies = [os.dup(descriptor) for descriptor in (device, source)]  # above the two numbers that they get
    while min(copies) < 5:
        copies = [os.dup(descriptor) for descriptor in copies]
    for number, descriptor in enumerate(copies, 3):
        os.dup2(descriptor, number)
    os.closerange(5, 65536)
    os.execv(program, [program, "-f", "/proc/self/fd/4", "/dev/fd/3"])  # noqa: S606


def call(name, *arguments):
    """Call a function of the C library; raise OSError if it fails."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


if __name__ == "__main__":
    main(int(os.path.basename(sys.argv[0])), *sys.argv[1:])

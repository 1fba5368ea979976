# SPDX-License-Identifier: BSD-3-Clause
"""Runs a command of a packed venv in a namespace where the packed file is mounted; packed.bash passes it to Python.

Arguments: the command and its arguments.

The file ($PYTORCH_PACKED) has the whole installation, and is mounted at the installation's own path, so all paths are
the same. The first process of a step on a node mounts it. The others find such a process in /proc and join its
namespaces. The mount ends with the last process that uses it. If nothing can mount, the command runs with the unpacked
files. This is one file: a rank opens few files on the shared file system.
"""

import _signal  # `signal` costs as much as all of this
import ctypes
import fcntl
import os
import sys
from itertools import chain
from zlib import crc32

NEWNS, NEWUSER = 0x00020000, 0x10000000  # CLONE_* of unshare(2)
FOLLOWING = 0x4000 | 0x80000  # MS_REC | MS_SLAVE of mount(2): file systems that the host mounts later appear
READ_ONLY = 1 | 2 | 4  # MS_RDONLY | MS_NOSUID | MS_NODEV
#: An empty file that only the packed file has, at its root. `packed.bash` tests it too.
MARKER = ".packed"
#: Where Apptainer keeps its own copy of squashfuse, below the prefix of its command (INSTALL.md, "squashfuse_ll").
APPTAINERS = ("libexec/apptainer/bin", "lib/x86_64-linux-gnu/apptainer/bin", "lib/aarch64-linux-gnu/apptainer/bin")
#: For the lock and the mount; then the command runs unpacked. squashfuse may hang with the file system of the file.
MOUNT_SECONDS = 60
LOCAL_RANKS = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID")
libc = ctypes.CDLL(None, use_errno=True)


def main(*arguments):
    env = os.environ
    file, root = env["PYTORCH_PACKED"], env.get("CONTAINERROOT", "")
    switch, is_loud = env.get("PYTORCH_LAUNCH_PACKED") or "1", env.get("PYTORCH_LAUNCH_VERBOSE", "0") not in ("", "0")
    try:
        if switch != "1":
            raise NotMountedError(f"PYTORCH_LAUNCH_PACKED={switch}")
        _signal.signal(_signal.SIGALRM, is_late)
        seconds = _signal.alarm(MOUNT_SECONDS)
        try:
            how = enter(file, root)
        finally:
            _signal.alarm(seconds)
        if is_loud:
            report(arguments[0], f"packed venv: {file} mounted by {how}")
    except (NotMountedError, OSError) as error:
        del env["PYTORCH_PACKED"]  # programs that the command starts do not try again
        if is_loud or switch != "0":
            report(arguments[0], f"packed venv not mounted: {error}. Using the unpacked files in {root}")
    os.execv(arguments[0], arguments)  # noqa: S606


class NotMountedError(Exception):
    """The packed file cannot be mounted; the message has the reason."""


def is_late(*_):
    raise NotMountedError(f"not done after {MOUNT_SECONDS} s")


def report(command, text):
    """Print a message, if this process is the first of its step on the node."""
    if all(os.environ.get(name, "0") == "0" for name in LOCAL_RANKS):
        try:
            os.write(2, f"{os.path.basename(command)}: {text}\n".encode())
        except OSError:
            return


def enter(file, root):
    """Enter a namespace with `file` mounted at `root`; return who mounted it. Raises NotMountedError, OSError."""
    directory, name = os.getcwd(), mount_name(file, root)
    lock = lock_directory()  # while another process mounts the file
    try:
        how = "an earlier process of this node" if join_earlier(name, root) else mount(name, file, root)
    finally:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_UN)  # children have the descriptor too
    os.chdir(directory)
    return how


def mount_name(file, root):
    """The name of a mount for processes that see the same files, and whose servers end with the same step."""
    step = f"{os.environ.get('SLURM_JOB_ID', '')}.{os.environ.get('SLURM_STEP_ID', '')}"
    if step.endswith("."):
        with open("/proc/self/cgroup") as groups:
            step = groups.read()
    namespaces = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("mnt", "user")]
    return f"{crc32(os.fsencode(f'{file} {root} {step} {namespaces}')):08x}"


def lock_directory():
    """Open and lock this job's directory on this node, where the launcher has its caches.

    Returns None if the directory is not private or cannot be locked. What counts is the directory that is open: another
    user may replace the names.
    """
    env, uid = os.environ, os.getuid()
    job, node = env.get("SLURM_JOB_ID", "local"), env.get("SLURMD_NODENAME") or os.uname().nodename
    try:
        directory = os.open(env.get("TMPDIR") or "/tmp", os.O_PATH)  # noqa: S108
        for name in (f"pytorch-{uid}", f"{job}-{node}"):
            try:  # noqa: SIM105  (a start imports no contextlib)
                os.mkdir(name, 0o700, dir_fd=directory)
            except FileExistsError:
                pass
            directory = os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            found = os.fstat(directory)
            if found.st_uid != uid or found.st_mode & 0o077:
                return None
        fcntl.flock(directory, fcntl.LOCK_EX)
    except OSError:
        return None
    return directory


def join_earlier(name, root):
    """Whether a process of this user has the mount `name`, whose namespaces this one has then joined."""
    for number in reversed(os.listdir("/proc")):  # the newest first
        try:
            if not number.isdigit() or os.stat(f"/proc/{number}").st_uid != os.getuid():
                continue
            process = os.open(f"/proc/{number}", os.O_DIRECTORY)  # of this process, even if its number is used again
            with open(os.open("mounts", os.O_RDONLY, dir_fd=process), "rb") as mounts:
                is_there = end_of_source(name, os.stat("ns/mnt", dir_fd=process)) in mounts.read()
            if is_there:
                os.open(f"root{root}/{MARKER}", os.O_RDONLY, dir_fd=process)  # OSError if the server has ended
                join(process)
                return True
            os.close(process)
        except OSError:  # it ends, or belongs to a container
            continue
    return False


def end_of_source(name, namespace):
    """What ends the source of a mount in a namespace of mounts, and not that of its copy in another namespace."""
    return f"@{name}-{namespace.st_ino} ".encode()


def join(process):
    """Join the namespaces of a process, by a descriptor of its directory in /proc; open, they stay when it ends."""
    for namespace in [os.open(f"ns/{kind}", os.O_RDONLY, dir_fd=process) for kind in ("user", "mnt")]:
        call("setns", namespace, 0)


def mount(name, file, root):
    """Mount `file` at `root` in new namespaces and join them; return the program. Raises NotMountedError, OSError."""
    program = find_squashfuse(root)  # then a child makes the namespaces: if it fails, this process is as it was
    told, tells = os.pipe()
    waits, joined = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(joined)
        try:
            make_namespaces(program, name, file, root)
            os.write(tells, b"mounted")
            os.read(waits, 1)  # until the parent has joined, or ended
        except BaseException as error:  # noqa: BLE001  (whatever it is, the parent reports it)
            os.write(tells, str(error).encode())
        os._exit(0)
    os.close(tells)
    try:
        answer = os.read(told, 4096).decode(errors="replace")
        if answer != "mounted":
            raise NotMountedError(answer or "the process that mounts it was killed")
        join(os.open(f"/proc/{child}", os.O_DIRECTORY))
    finally:
        os.kill(child, _signal.SIGKILL)
        for _ in range(100):  # a file system that hangs may hold it for ever
            if os.waitpid(child, os.WNOHANG)[0]:
                break
            _signal.sigtimedwait([], 0.01)
        os.close(joined)
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


def make_namespaces(program, name, file, root):
    """Enter new namespaces of users and of mounts, and mount `file` there. Raises OSError."""
    user, group = os.getuid(), os.getgid()
    # in the new namespace, no process can open what another one has open (user_namespaces(7))
    packed = os.open(file, os.O_RDONLY)
    call("unshare", NEWUSER)
    for table, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{table}", "w") as mapping:
            mapping.write(text)
    device = os.open("/dev/fuse", os.O_RDWR)
    started, start = os.pipe()
    # it stays out of the namespace of mounts, which ends with the last program in it; then the kernel closes the device
    if os.fork() == 0:
        os.close(start)
        os.read(started, 1)
        become_server(program, packed, device)
    call("unshare", NEWNS)
    call("mount", b"none", b"/", None, FOLLOWING, None)
    options = f"fd={device},rootmode=40000,user_id={user},group_id={group}"
    source = os.fsencode(file) + end_of_source(name, os.stat("/proc/self/ns/mnt"))[:-1]
    call("mount", source, os.fsencode(root), b"fuse.squashfuse", READ_ONLY, options.encode())
    for descriptor in (device, start, packed):
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

"""Becomes a command in an image that the ranks of a step on this node mount once; called by `enter-image` in each of
them as `python3 -I -S share-image.py <runtime> <image> <command> [argument ...]`.

The first rank leaves a holder behind: a process that starts a shell in the image, the keeper, and ends it, and with it
the mount, after the last rank. Each rank asks the holder for the keeper, enters its namespaces as nsenter(1) does, and
becomes the command, with the variables that the runtime gave the keeper. They meet at a socket whose name is in no
file system (unix(7), "Abstract"), so that nothing stays behind, whoever is killed.

Ranks that cannot share mount the image for themselves, and the first of them says why. This runs on the host: Python
3.6 or newer, without `site`, and only the holder imports what takes long.
"""

import _signal  # the cores of `signal` and `socket`, whose import takes as long as all else here
import _socket
import errno
import marshal
import os
import struct
import sys
import time
import warnings  # noqa: F401  # by os.execvpe, which in the image would look for it, and find another Python's or none

#: What tells the launches of a user on a node apart. Each launcher sets some of them.
LAUNCH = (
    b"SLURMD_NODENAME",
    b"SLURM_JOB_ID",
    b"SLURM_STEP_ID",
    b"PMIX_NAMESPACE",
    b"OMPI_MCA_ess_base_jobid",
    b"PALS_APID",
    b"PMI_JOBID",
    b"PBS_JOBID",
)
#: Beginnings of the variables that decide what the runtime mounts and sets.
OPTIONS = (b"SINGULARITY", b"APPTAINER", b"NVIDIA_VISIBLE_DEVICES")
#: Options for which a container has something of its own to write to, or limits of its own.
PRIVATE = {
    b"%s_%s" % (runtime, option)
    for runtime in (b"SINGULARITY", b"APPTAINER")
    for option in (b"WRITABLE_TMPFS", b"CONTAIN", b"SCRATCH", b"SECURITY", b"APPLY_CGROUPS", b"DROP_CAPS", b"OVERLAY")
}
#: The keeper is known by this variable, which has the holder's number.
MARK = b"__PYTORCH_IMAGE_HOLDER"
#: What a step may be sent while it goes on. The keeper stays until its input ends.
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "TSTP")
#: Its line is one of its own, even where the image has printed something without ending the line.
KEEPER = f"trap '' {' '.join(SIGNALS)}; printf '\\nkeeper %s\\n' $$; read -r _"
#: Namespaces that ranks enter, and those that the keeper must have in common with them.
ENTERED, COMMON = ("user", "mnt"), ("pid", "ipc", "net", "uts")
NO_NEW_PRIVILEGES = 38  # PR_SET_NO_NEW_PRIVS (prctl(2))
REMEDY = "export PYTORCH_LAUNCH_SHARE_IMAGE=0 to have it so without this message"
LONGEST_ADDRESS = 107  # bytes (unix(7))
DIFFERS = b"differs"  # what a rank says to be refused
LARGEST_MESSAGE = 1 << 18  # bytes; the kernel's default is less


class NotShared(Exception):
    """Why ranks mount the image for themselves; empty where another rank says it."""


def main(runtime, image, *command):
    """Become `command` in the shared mount, or else in one of its own; return 127 if it cannot be started."""
    if _signal.getsignal(_signal.SIGINT) is not _signal.SIG_IGN:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # no traceback while this waits
    variables = environment("self")
    try:
        keeper, changes = ask(runtime, image, variables)
        enter(keeper)
    except (NotShared, OSError) as error:
        if str(error):
            say(f"each rank on {os.uname().nodename} mounts the image for itself, as {error}: {REMEDY}")
        command, changes = (runtime, "exec", image, *command), {}
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # which this interpreter ignores
        _signal.signal(number, _signal.SIG_DFL)
    changed = {name: value for name, value in {**variables, **changes}.items() if value is not None}
    try:
        os.execvpe(command[0], command, changed)
    except OSError as error:
        say(f"{command[0]} cannot be started: {error.strerror}")
        return 127


def say(text):
    """Write a line on standard error at once, so that those of several ranks stay whole."""
    os.write(2, os.fsencode(f"share-image: {text}\n"))


def environment(process):
    """The variables that a process was started with, names and values in bytes."""
    with open(f"/proc/{process}/environ", "rb") as file:
        return dict(entry.split(b"=", 1) for entry in file.read().split(b"\0") if b"=" in entry)


# In a rank


def ask(runtime, image, variables):
    """The keeper's process number, and the changes to `variables` that the runtime would make.

    Raises NotShared or OSError.
    """
    if any(variables.get(name) for name in PRIVATE):
        raise NotShared
    launch = [variables.get(name, b"") for name in LAUNCH]
    if not any(launch):  # as under Hydra (MPICH, Intel MPI), whose ranks on a node are children of one process
        launch = [b"parent", b"%d" % os.getppid(), started(os.getppid())]
    address = b"\0pytorch-image %d %s" % (os.geteuid(), b" ".join(launch))
    file = os.stat(image)
    options = sorted(item for item in variables.items() if item[0].startswith(OPTIONS))
    wanted = marshal.dumps((launch, runtime, file.st_dev, file.st_ino, file.st_mtime_ns, os.getcwd(), options))
    for _ in range(3):  # a holder may be about to end
        connection = meet(address[:LONGEST_ADDRESS], wanted, (runtime, "exec", image), variables)
        try:
            connection.send(wanted)
            answer = connection.recv(LARGEST_MESSAGE)
            if answer and differing(variables, answer):
                connection.send(DIFFERS)
                answer = connection.recv(LARGEST_MESSAGE)
        except ConnectionError:
            continue
        if answer:
            os.set_inheritable(connection.detach(), True)  # open as long as this process, whatever it becomes
            messages, reason, keeper, changes, _ = marshal.loads(answer)  # noqa: S302  # of a process of this user
            if messages:
                os.write(2, messages)
            if not keeper:
                raise NotShared(reason)
            return keeper, changes
    raise NotShared("the process that holds the mount ended before this rank had entered it")


def differing(variables, answer):
    """Whether the image might have set other variables in this rank than in the first."""
    read = marshal.loads(answer)[-1]  # noqa: S302  # of a process of this user
    return any(variables.get(name) != value for name, value in read.items())


def meet(address, wanted, start, variables):
    """A connection to the holder, which is left behind where there is none yet. Raises NotShared or OSError."""
    for _ in range(100):
        listener, connection = (_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET) for _ in range(2))
        try:
            listener.bind(address)
            listener.listen(4096)
            first = True
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            first = False
        try:
            connection.connect(address)
        except ConnectionRefusedError:  # another rank is between bind and listen, or its holder has just ended
            time.sleep(0.01)
            continue
        _, user = peer(connection)
        if user != os.geteuid():
            raise NotShared(f"user {user} has taken the address where they would meet")
        if first:
            child = os.fork()
            if child == 0:
                leave(listener, wanted, start, variables)
            os.waitpid(child, 0)
        listener.close()
        return connection
    raise NotShared("nobody listens at the address where they would meet")


def peer(connection):
    """The process and the user at the other end."""
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[:2]


def enter(keeper):
    """Take the keeper's namespaces, root and working directory. Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)  # `os` has setns from Python 3.12 on
    spaces = [os.open(f"/proc/{keeper}/ns/{kind}", os.O_RDONLY) for kind in ENTERED if differs(keeper, kind)]
    root, directory = (os.open(f"/proc/{keeper}/{name}", os.O_RDONLY) for name in ("root", "cwd"))
    for space in spaces:
        if libc.setns(space, 0):
            raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")
    os.fchdir(root)
    os.chroot(".")
    os.fchdir(directory)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # as runtimes do


def differs(process, kind):
    """Whether a process is in another namespace of this kind than this one. Raises OSError."""
    return os.readlink(f"/proc/{process}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")


# In the holder


def leave(listener, wanted, start, variables):
    """Become the holder: nobody's child, with nothing of the rank that it stems from. Does not return."""
    try:
        if os.fork() == 0:
            os.setsid()
            for name in SIGNALS:
                _signal.signal(getattr(_signal, f"SIG{name}"), _signal.SIG_IGN)
            nothing = os.open(os.devnull, os.O_RDWR)
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor < 3:
                    os.dup2(nothing, descriptor)
                elif descriptor != listener.fileno():
                    os.closerange(descriptor, descriptor + 1)  # one is closed already, that of the listing
            hold(listener, wanted, start, variables)
    finally:
        os._exit(0)


def hold(listener, wanted, start, variables):
    """Keep the image mounted until the last rank has gone, and tell all of them how to enter it."""
    import contextlib
    import socket
    import subprocess

    # Not only on the CPUs of the rank that this stems from, as the runtime may decompress the image for all of them.
    # A cpuset of the step still holds.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF")))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=listener.detach())
    ranks, runtime = {}, None
    try:
        runtime = subprocess.Popen(
            [*start, "sh", "-c", KEEPER],
            env={**variables, MARK: mark()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        keeper, messages = wait_for(runtime, listener, ranks)
        if not keeper:  # and nobody who waits for one
            runtime.kill()
            return
        changes = changes_in(keeper, variables)
        names = changes.keys() | names_read(keeper)
        answer = messages, "", keeper, changes, {name: variables.get(name) for name in names}
        check_entry(keeper)
    except Exception as error:  # whatever it is, it must not vanish with this process
        reason = str(error) if isinstance(error, NotShared) else f"{type(error).__name__}: {error}"
        answer = b"", reason, 0, {}, {}
        if runtime:
            runtime.stdin.close()
    serve(listener, wanted, answer, ranks)
    if runtime:
        runtime.stdin.close()
        runtime.wait()


def mark():
    """The value of MARK for a keeper of this process."""
    return b"%d" % os.getpid()


def wait_for(runtime, listener, ranks):
    """The keeper's process number, and what the runtime said before; 0 for the former if all ranks have gone.

    Ranks that come meanwhile are added to `ranks`. Raises NotShared if there will be no keeper.
    """
    import select

    output, said = runtime.stdout.fileno(), b""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(output, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listener.fileno():
                connection = admit(listener, ranks)
                if connection:
                    poll.register(connection, 0)  # to hear of its end only
            elif descriptor == output:
                read = os.read(output, LARGEST_MESSAGE)
                said += read
                *lines, rest = said.split(b"\n")
                messages = [line + b"\n" for line in (lines if read else [*lines, rest]) if line.strip()]
                for place, line in enumerate(messages):
                    if line.startswith(b"keeper "):
                        return int(line.split()[1]), b"".join(messages[:place])
                if not read:
                    last = os.fsdecode(messages[-1]).strip() if messages else "without a message"
                    raise NotShared(f"{runtime.args[0]} ended with status {runtime.wait()}: {last}")
            else:
                poll.unregister(descriptor)
                ranks.pop(descriptor)[0].close()
                if not ranks:
                    return 0, b""


def admit(listener, ranks):
    """The connection of a rank that comes, now one of `ranks`, None if it is another user's."""
    connection, _ = listener.accept()
    process, user = peer(connection)
    if user != os.geteuid():
        return None
    ranks[connection.fileno()] = connection, (process, started(process))
    return connection


def changes_in(keeper, variables):
    """What the runtime made of `variables`: name to new value, or to None where it took one away. Raises NotShared."""
    try:
        made = environment(keeper)
    except OSError:
        made = {}
    if made.pop(MARK, b"") != mark():
        raise NotShared("the container hides the host's variables or its own processes (--cleanenv, --pid)")
    names = variables.keys() | made.keys()
    return {name: made.get(name) for name in names if made.get(name) != variables.get(name)}


def names_read(keeper):
    """The words of the image's environment scripts, among them the variables that these go by, as ${NAME:-default}."""
    import glob
    import re

    names = set()
    for script in glob.glob(f"/proc/{keeper}/root/.singularity.d/env/*.sh"):
        with open(script, "rb") as file:
            names.update(re.findall(rb"[A-Za-z_]\w*", file.read()))
    return names


def check_entry(keeper):
    """Raise NotShared if ranks may not enter the keeper's mount, or if it has more of its own than that."""
    own = [kind for kind in COMMON if differs(keeper, kind)]
    if own:
        raise NotShared(f"the container has namespaces of its own: {', '.join(own)}")
    child = os.fork()
    if child == 0:
        code = errno.EPERM
        try:
            enter(keeper)
            code = 0
        except OSError as error:
            code = error.errno
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise NotShared(f"only root may enter a mount of this runtime, installed setuid ({os.strerror(status >> 8)})")


def serve(listener, wanted, answer, ranks):
    """Answer `ranks` and those to come until the last one has gone. What is for people to read goes to the first."""
    import select

    reason = "not all have the same image, working directory, SINGULARITY_* and APPTAINER_* variables, and values of "
    refusal = b"", f"{reason}the variables that the image sets", 0, {}, {}
    ending, pause = set(), None
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    for connection, _ in ranks.values():
        poll.register(connection, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll(pause):
            if descriptor == listener.fileno():
                connection = admit(listener, ranks)
                if connection:
                    poll.register(connection, select.POLLIN)
                continue
            connection, rank = ranks[descriptor]
            try:
                asked = connection.recv(LARGEST_MESSAGE)
                if asked == wanted:
                    connection.send(marshal.dumps(answer))
                    answer = b"", "", *answer[2:]
                elif asked:
                    connection.send(marshal.dumps(refusal))
                    refusal = b"", "", *refusal[2:]
            except OSError:
                asked = b""
            if not asked:
                poll.unregister(descriptor)
                connection.close()
                del ranks[descriptor]
                ending.add(rank)
        # whoever closed the connection may still run: programs close what they do not know
        ending = {rank for rank in ending if rank[1] and started(rank[0]) == rank[1]}
        if not ranks and not ending:
            break
        pause = min(2 * (pause or 5), 1000) if ending else None  # milliseconds
    listener.close()  # a rank that comes now finds nobody, and is a first one


def started(process):
    """When a process started, in the kernel's own measure; an empty text once it has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b""
    return b"" if fields[0] in b"ZX" else fields[19]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

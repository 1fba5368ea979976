"""The claim on a meeting point, from before Python starts until its process ends; called by `rank`.

Torch binds its port seconds after the launcher has found it free. Two launches that chose the same port would both
start, and their ranks would meet. So the launcher binds an abstract unix socket, whose name is in the same network
namespace as the port (unix(7)); one process at a time can have it, Python inherits the descriptor, and the kernel
frees the name with the last copy of it. Nothing waits and nothing is sent: what another launch holds is in
/proc/net/unix.

Names, below `pytorch-launch/<port>/`:

    node/<number>                           held by the first rank of a launch on this node
    rank0/<number>                          held by rank 0
    of/<inode>/<launch>/<namespace>/<pid>   who holds the socket with this inode; bound before that one is

A process that the holder left behind may have inherited the descriptor: once the holder's own process is gone, the
next launch takes the next number.
"""

import posix

NAME = "pytorch-launch"

# The label of a launch whose ranks share no number.
UNKNOWN = "unknown"

# Descriptors left behind, one name each, before a port is given up.
NUMBERS = 16


class Holder:
    """Another process with a claim: `launch`, whose it is, and `pid`, in the process namespace of inode `namespace`."""

    def __init__(self, launch, namespace, pid):
        self.launch = launch
        self.namespace = namespace
        self.pid = pid

    def has_ended(self):
        """Whether a child holds its descriptor now; unknown in another process namespace, so false."""
        if self.namespace != _process_namespace():
            return False
        state = _state_and_parent(self.pid)[0]
        if state:
            return state in "ZX"  # a zombie keeps its number until its parent waits for it, proc_pid_stat(5)
        # ended, or hidden: where /proc is mounted with hidepid=2, other users' processes have no file either
        try:
            posix.kill(int(self.pid), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError, OverflowError):
            return False
        return False

    def is_ancestor(self):
        """Whether it is this process, or has started it: a supervisor that runs the command itself."""
        pid = str(posix.getpid())
        while pid not in ("0", ""):
            if pid == self.pid:
                return self.namespace == _process_namespace()
            pid = _state_and_parent(pid)[1]
        return False

    def blocks(self):
        """Whether its claim is in the way of this process."""
        return not self.has_ended() and not self.is_ancestor()


#: Who holds a claim without telling: no launcher of ours.
STRANGER = Holder("another program", "", "")


def claim(port, launch, *, is_rank_0):
    """Claim `port` for `launch` on this node; return None, or the Holder that has it already.

    All ranks of a launch on the node of rank 0 have the same `launch`, another launch has another one; None is for a
    launch that cannot be told from others, whose rank 0 claims alone. The descriptors stay open across exec.
    """
    own = f"{launch or UNKNOWN}/{_process_namespace()}/{posix.getpid()}"
    if launch is not None:
        holder = _take(port, "node", own, launch)
        if holder is not None:
            return holder
    if is_rank_0:
        holder = _take(port, "rank0", own, None)
        if holder is not None:
            return holder
    # under another number than ours
    for holder in _holders(port).values():
        if holder.launch != launch and holder.blocks():
            return holder
    return None


def is_claimed(port):
    """Whether a launch on this node has claimed `port`, so that its rank 0 is about to listen there."""
    return any(not holder.has_ended() for holder in _holders(port).values())


def _take(port, role, own, launch):
    """Bind the first free name of `role`; return None, or who has one, unless that is of `launch` itself."""
    for number in range(NUMBERS):
        name = f"{role}/{number}"
        if _bind(port, name, own):
            return None
        holders = _holders(port)
        if holders is UNREADABLE:
            return None
        holder = holders.get(name)
        if holder is not None and holder.launch == launch:
            return None
        if holder is not None and holder.blocks():
            return holder
    return STRANGER


def _bind(port, name, own):
    """Bind `name` for the life of this process and of the Python that it becomes; false if it is taken."""
    import _socket  # the core of `socket`, at a twentieth of its import time

    sockets = []
    try:
        for _ in range(2):
            end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
            sockets.append(end)
        main, label = sockets
        inode = posix.fstat(main.fileno()).st_ino
        label.bind(f"\0{NAME}/{port}/of/{inode}/{own}")
        main.bind(f"\0{NAME}/{port}/{name}")
    except OSError as error:
        for end in sockets:
            end.close()
        return error.errno != 98  # EADDRINUSE; without unix sockets there is nothing to hold
    for end in sockets:
        posix.set_inheritable(_above_standard_streams(end.detach()), True)
    return True


def _above_standard_streams(descriptor):
    """The same open file under a number that Python does not take for a standard stream, where one was closed."""
    low = []
    while descriptor < 3:
        low.append(descriptor)
        descriptor = posix.dup(descriptor)
    for number in low:
        posix.close(number)
    return descriptor


class _Unreadable(dict):
    """No holders that are known."""


UNREADABLE = _Unreadable()


def _holders(port):
    """Who has claimed `port`, by the name that is held; UNREADABLE where /proc is hidden."""
    text = _text("/proc/net/unix")
    if text is None:
        return UNREADABLE
    names, labels = {}, {}
    start = f"@{NAME}/{port}/"
    for line in text.splitlines():
        if start not in line:
            continue
        fields = line.split()  # Num RefCount Protocol Flags Type St Inode Path
        words = fields[7][len(start) :].split("/") if len(fields) == 8 and fields[7].startswith(start) else ()
        if len(words) == 2:
            names[fields[6]] = "/".join(words)
        elif len(words) == 5 and words[0] == "of":
            labels.setdefault(words[1], []).append(Holder(*words[2:]))
    # anyone can bind a name: two labels for one socket are nobody's
    return {name: labels[inode][0] for inode, name in names.items() if len(labels.get(inode, ())) == 1}


def _state_and_parent(pid):
    """The state of a process, as `R`, and the number of its parent; "" for what cannot be read."""
    stat = _text(f"/proc/{pid}/stat") or ""
    return (stat.rpartition(")")[2].split() + ["", ""])[:2]


def _process_namespace():
    """The number of the namespace in which this process has its process number, 0 where that is hidden."""
    try:
        return str(posix.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _text(path):
    """The whole text of a file of /proc, None if it cannot be read; one read(2) returns a page or so."""
    parts = []
    try:
        file = posix.open(path, posix.O_RDONLY)
        try:
            while not parts or parts[-1]:
                parts.append(posix.read(file, 1 << 20))
        finally:
            posix.close(file)
    except OSError:
        return None
    return b"".join(parts).decode(errors="replace")

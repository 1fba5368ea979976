# SPDX-License-Identifier: BSD-3-Clause
"""Claims the port where ranks meet, from before Python starts until its process ends.

Torch binds its port seconds after the launcher has found it free. Two launches that chose the same port would both
start, and their ranks would meet. So the launcher binds an abstract unix socket, whose name is in the same network
namespace as the port (unix(7)). One process at a time can bind it, Python inherits the descriptor, and the kernel
frees the name with the last copy of it. Nothing waits and nothing is sent: the claims of other launches are in
/proc/net/unix.

Names, below `pytorch-launch/<port>/`:

    node/<number>                           of the first rank of a launch on this node
    rank0/<number>                          of rank 0
    of/<inode>/<launch>/<namespace>/<pid>   the holder of the socket with this inode; bound before that socket

A process that the holder left behind may have inherited the descriptor: after the holder's own process has ended, the
next launch binds the next number.
"""

import _socket  # in place of `socket`, see `pytorch_launch`
import posix as os

from pytorch_launch import read
from pytorch_launch.addresses import is_free
from pytorch_launch.facts import state_and_parent
from pytorch_launch.world import RendezvousError

NAME = "pytorch-launch"

# The label of a launch whose ranks share no number.
UNKNOWN = "unknown"

# Names that can be lost to descriptors left behind before the port counts as in use.
NUMBERS = 16

START_AGAIN = "start again, or export another MASTER_PORT for this launch"
NOT_A_RANK = "use conda-python-simple for a program that is not a rank, or export another MASTER_PORT"


class Holder:
    """Another process with a claim: `launch`, and `pid` in the process namespace of inode `namespace`."""

    def __init__(self, launch, namespace, pid):
        self.launch, self.namespace, self.pid = launch, namespace, pid

    def has_ended(self):
        """Whether only a child holds its descriptor now; false in another process namespace, where it is unknown."""
        if self.namespace != _process_namespace():
            return False
        state = state_and_parent(self.pid)[0]
        if state:
            return state in "ZX"  # a zombie keeps its number until its parent waits for it, proc_pid_stat(5)
        # ended, or hidden: with /proc mounted with hidepid=2, other users' processes have no file either
        try:
            os.kill(int(self.pid), 0)
        except (OSError, ValueError, OverflowError) as error:
            return isinstance(error, ProcessLookupError)
        return False

    def blocks(self):
        """Whether it runs, and is no ancestor of this process, such as a supervisor that runs the command."""
        pid = str(os.getpid()) if self.namespace == _process_namespace() else ""
        while pid not in ("0", "", self.pid):
            pid = state_and_parent(pid)[1]
        return (pid in ("0", "") or pid != self.pid) and not self.has_ended()


def hold_port(place, world, launch):
    """Claim the port of `place` for `launch`; raise RendezvousError if another launch or a listening process has it.

    For every rank there, before it starts Python: of two launches with the same port, the ranks of one would
    join the other. Rank 0 would fail in Python as well if another process listens, but the other ranks would connect
    to that process and wait for it. A program without a claim can still bind the port between this and torch.
    """
    port, remedy = int(place["MASTER_PORT"]), START_AGAIN
    holder = take_claim(port, launch, is_rank_0=world.rank == 0)
    if holder is not None:
        name = "another launch" if holder.launch == UNKNOWN else holder.launch
        if holder.launch == launch:  # a second program of rank 0's task, which would fail again
            name, remedy = "another rank 0 of this launch", NOT_A_RANK
        name += holder.pid and f" (process {holder.pid})"
    elif world.rank != 0 or is_free(port):
        return
    else:
        name = "another program, or by one that started this"
    fault = f"port {port} on {place['MASTER_ADDR']}, the rendezvous of {world.source}, is in use by {name}"
    raise RendezvousError(fault, remedy, rank=world.rank)


def take_claim(port, launch, *, is_rank_0):
    """Claim `port` for `launch` on this node; return None, or the Holder that has it already.

    All ranks of a launch on the node of rank 0 have the same `launch`, which identifies it. If it is None, the ranks
    share no number, and only rank 0 claims. The descriptors stay open across exec.
    """
    own = f"{launch or UNKNOWN}/{_process_namespace()}/{os.getpid()}"
    holder = None if launch is None else _take(port, "node", own, launch)
    if holder is None and is_rank_0:
        holder = _take(port, "rank0", own, None)
    if holder is not None:
        return holder
    # other launches may have bound another number
    others = (holder for holder in (_holders(port) or {}).values() if holder.launch != launch)
    return next((holder for holder in others if holder.blocks()), None)


def is_claimed(port):
    """Whether a launch on this node has claimed `port`, so that its rank 0 will listen there."""
    return any(not holder.has_ended() for holder in (_holders(port) or {}).values())


def _take(port, role, own, launch):
    """Bind the first free name of `role`; return None, or the Holder of one that is not of `launch`."""
    for number in range(NUMBERS):
        name = f"{role}/{number}"
        holders = None if _bind(port, name, own) else _holders(port)
        if holders is None:
            return None
        holder = holders.get(name)
        if holder is not None and holder.launch == launch:
            return None
        if holder is not None and holder.blocks():
            return holder
    return Holder("another program", "", "")  # names without a label are not of this package


def _bind(port, name, own):
    """Bind `name` for the life of this process and of the Python that it becomes; false if it is taken."""
    sockets = []
    try:
        for _ in range(2):
            sockets.append(_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM))
        main, label = sockets
        label.bind(f"\0{NAME}/{port}/of/{os.fstat(main.fileno()).st_ino}/{own}")
        main.bind(f"\0{NAME}/{port}/{name}")
    except OSError as error:
        for end in sockets:
            end.close()
        return error.errno != 98  # EADDRINUSE; without unix sockets there is nothing to claim
    for end in sockets:
        # above the numbers of the standard streams, one of which may be closed
        descriptor, low = end.detach(), []
        while descriptor < 3:
            low.append(descriptor)
            descriptor = os.dup(descriptor)
        for number in low:
            os.close(number)
        os.set_inheritable(descriptor, True)
    return True


def _holders(port):
    """The Holders of `port` by the names that they bound; None if /proc is hidden."""
    text = read("/proc/net/unix")
    if text is None:
        return None
    names, labels = {}, {}
    start = f"@{NAME}/{port}/"
    for line in text.splitlines():
        fields = line.split() if start in line else ()  # Num RefCount Protocol Flags Type St Inode Path
        words = fields[7][len(start) :].split("/") if len(fields) == 8 and fields[7].startswith(start) else ()
        if len(words) == 2:
            names[fields[6]] = "/".join(words)
        elif len(words) == 5 and words[0] == "of":
            labels.setdefault(words[1], []).append(Holder(*words[2:]))
    # any process can bind a name, so two labels for one socket do not count
    return {name: labels[inode][0] for inode, name in names.items() if len(labels.get(inode, ())) == 1}


def _process_namespace():
    """The number of the namespace in which this process has its process number, 0 where that is hidden."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"

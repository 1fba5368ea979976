# SPDX-License-Identifier: BSD-3-Clause
"""Claims the port where ranks meet, from before Python starts until its process ends.

Torch binds its port seconds after the launcher has found it free. Two launches that chose the same port would both
start, and their ranks would meet. So the launcher binds an abstract unix socket, whose name is in the same network
namespace as the port (unix(7)). One process at a time can bind it, Python inherits the descriptor, and the kernel
frees the name with the last copy of it. Nothing waits and nothing is sent: the claims of other launches are in
/proc/net/unix.

Names, below `pytorch-launch/<port>/`:

    <number>                                       of the first rank of a launch on this node, and of rank 0
    of/<inode>/<launch>/<rank>/<namespace>/<pid>   the holder of the socket with this inode; bound before that socket.
                                                   <rank> is 0, or `-` for another one

A process that the holder left behind may have inherited the descriptor: after the holder's own process has ended, the
next launch binds the next number.
"""

import _socket  # in place of `socket`, see `pytorch_launch`
import posix as os

from pytorch_launch import ancestors, process, read
from pytorch_launch.world import RendezvousError

NAME = "pytorch-launch"

# Names that can be lost to descriptors left behind before the port counts as in use.
NUMBERS = 16


def hold_port(place, world, launch):
    """Claim the port of `place` for `launch`; raise RendezvousError if another launch or a listening process has it.

    For every rank there, before it starts Python: of two launches with the same port, the ranks of one would
    join the other. Rank 0 would fail in Python as well if another process listens, but the other ranks would connect
    to that process and wait for it. A program without a claim can still bind the port between this and torch.
    """
    port, is_first = int(place["MASTER_PORT"]), world.rank == 0
    # of a launch whose ranks share no number, only rank 0 claims
    own = launch or (f"-{os.getpid()}" if is_first else None)
    holder = take_claim(port, own, is_rank_0=is_first) if own else None
    if holder is not None:
        name, pid = holder
        user = "another launch" if name.startswith("-") else "another rank 0 of this launch" if name == own else name
        user += f" (process {pid})" if pid else ""
    elif is_first and not is_free(port):
        user = "another program, or by one that started this"
    else:
        return
    fault = f"port {port} on {place['MASTER_ADDR']}, the rendezvous of {world.source}, is in use by {user}"
    remedy = "start again, or export another MASTER_PORT for this launch"
    if holder is not None and holder[0] == own:
        remedy = "start a program that is not a rank with conda-python-simple"
    raise RendezvousError(fault, remedy, rank=world.rank)


def take_claim(port, launch, *, is_rank_0):
    """Claim `port` for `launch` on this node; return None, or the launch and the process that have it already.

    All ranks of a launch on the node of rank 0 have the same `launch`. The first of them claims for all, and rank 0 in
    any case, as the first may end before it. Two processes with rank 0, such as of a task that starts two programs, are
    two launches. The descriptors stay open across exec.
    """
    for number in range(NUMBERS):
        is_bound = _bind(f"{NAME}/{port}", number, f"{launch}/{'0' if is_rank_0 else '-'}")
        holders = _holders(f"{NAME}/{port}")
        if holders is None:  # /proc is hidden
            return None
        others = [holder for holder in holders if holder[0] != launch or (is_rank_0 and holder[1] == "0" and holder[2])]
        if others:  # a rank that runs the command again, as a supervisor does, is no other launch
            own = {str(os.getpid()), *(pid for pid, _ in ancestors())}
            others = [holder for holder in others if holder[2] not in own]
        if is_bound or others or (holders and not is_rank_0):
            return others[0][::2] if others else None
    return "another program", ""  # names without a label are not of this package


def is_claimed(port):
    """Whether a launch on this node has claimed `port`, so that its rank 0 will listen there."""
    return bool(_holders(f"{NAME}/{port}"))


def is_free(port):
    """Whether a server could listen on `port` of this host, over IPv6 and IPv4."""
    for family in (_socket.AF_INET6, _socket.AF_INET):
        try:
            probe = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:  # a kernel without this family
            continue
        try:
            # as torch does, so that a port in TIME_WAIT counts as free
            probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            if family == _socket.AF_INET6:
                probe.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
            # if both servers set SO_REUSEADDR, Linux fails only the second listen(2)
            probe.listen(1)
        except OSError as error:
            if error.errno == 98:  # EADDRINUSE; `errno` would be one more module
                return False
        finally:
            probe.close()
    return True


def _bind(place, number, launch_and_rank):
    """Bind name `number` of `place` for the life of this process and of its Python; false if it is taken."""
    sockets = []
    try:
        for _ in range(2):
            sockets.append(_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM))
        main, label = sockets
        inode = os.fstat(main.fileno()).st_ino
        label.bind(f"\0{place}/of/{inode}/{launch_and_rank}/{_process_namespace()}/{os.getpid()}")
        main.bind(f"\0{place}/{number}")
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
        for stream in low:
            os.close(stream)
        os.set_inheritable(descriptor, True)
    return True


def _holders(place):
    """Launch, rank and process, if it has a number here, of each claim on `place`; None if /proc is hidden.

    A claim ends with its process, also if a child of that one has the descriptor.
    """
    text = read("/proc/net/unix")
    if text is None:
        return None
    names, labels, start = [], {}, f"@{place}/"
    for line in text.splitlines():
        fields = line.split() if start in line else ()  # Num RefCount Protocol Flags Type St Inode Path
        words = fields[7][len(start) :].split("/") if len(fields) == 8 and fields[7].startswith(start) else ()
        if len(words) == 1:
            names.append(fields[6])
        elif len(words) == 6 and words[0] == "of":
            labels.setdefault(words[1], []).append(words[2:])
    # any process can bind a name, so two labels for one socket do not count
    claims = (labels[inode][0] for inode in names if len(labels.get(inode, ())) == 1)
    running, here = (claim for claim in claims if not _has_ended(*claim[2:])), _process_namespace()
    return [(launch, rank, pid if space == here else "") for launch, rank, space, pid in running]


def _has_ended(namespace, pid):
    """Whether a process has ended; false in another process namespace, where it is unknown."""
    if namespace != _process_namespace():
        return False
    _, state, _ = process(pid)
    if state:
        return state in "ZX"  # a zombie keeps its number until its parent waits for it, proc_pid_stat(5)
    # ended, or hidden: with /proc mounted with hidepid=2, other users' processes have no file either
    try:
        os.kill(int(pid), 0)
    except (OSError, ValueError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _process_namespace():
    """The number of the namespace in which this process has its process number, 0 where that is hidden."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"

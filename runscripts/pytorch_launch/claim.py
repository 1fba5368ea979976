# SPDX-License-Identifier: BSD-3-Clause
"""Claims the place where ranks meet, from before Python starts until its process ends.

Torch binds its port seconds after the launcher has found it free. Two launches that chose the same port would both
start, and their ranks would meet. So each rank binds an abstract unix socket, whose name is in the same network
namespace as the port (unix(7)), and Python inherits it:

    pytorch-launch/<place>/<launch>/<rank>/<namespace>/<pid>    <rank> is 0, or `-` for another one

The claims of other launches are in /proc/net/unix. A process looks there and claims while it has the name
`pytorch-launch/<place>`, which one process at a time can bind. The place is the port; on other nodes than that of rank
0, with a number for the address, as launches with other addresses may have ranks there.
"""

import _socket  # in place of `socket`, see `pytorch_launch`
import posix as os

from pytorch_launch import LaunchError, ancestors, process, read
from pytorch_launch.world import text_number

NAME, EADDRINUSE = "pytorch-launch", 98  # `errno` would be one more module

# For other processes to look and claim, which takes milliseconds; another user may keep the name.
SECONDS = 3


def hold_port(place, world, launch):
    """Claim the port of `place` for `launch`; raise LaunchError if another launch or a listening process has it.

    For every rank, before it starts Python: of two launches with the same port, the ranks of one would join the other.
    Rank 0 would fail in Python as well if another process listens, but the other ranks would connect to that process
    and wait for it. A program without a claim can still bind the port between this and torch.
    """
    port, is_first = int(place["MASTER_PORT"]), world.rank == 0
    is_here = is_first or world.node_rank == 0
    # of a launch whose ranks share no number, only rank 0 claims
    own = launch or (f"-{os.getpid()}" if is_first else None)
    where = str(port) if is_here else f"{port}-{text_number(place['MASTER_ADDR'])}"
    holder = take_claim(where, own, is_rank_0=is_first) if own else None
    if holder is None and not (is_first and not is_free(port)):
        return
    user, remedy = "another program, or by one that started this", "start again, or export another MASTER_PORT"
    if holder is not None:
        name, pid = holder
        user = "another launch" if name.startswith("-") else name
        if name == own:
            user, remedy = "another rank 0 of this launch", "start other programs with conda-python-simple"
        user += f" (process {pid})" if pid else ""
    fault = f"port {port} on {place['MASTER_ADDR']}, the rendezvous of {world.source}, is in use by {user}"
    raise LaunchError(fault, remedy, rank=world.rank)


def take_claim(place, launch, *, is_rank_0):
    """Claim `place` for `launch` on this node; return None, or the launch and the process that have it already.

    Two processes with rank 0, such as of a task that starts two programs, are two launches. A rank that runs the
    command again, as a supervisor does, is no other launch. The descriptor stays open across exec.
    """
    lock, end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM), os.times()[4] + SECONDS
    try:
        while not _bind(lock, place):
            # that claim was made for all: of hundreds of ranks on few cores, the last would wait too long for the name
            if not is_rank_0 and {each[0] for each in _holders(place)} == {launch}:
                return None
            if os.times()[4] > end:
                return "another program", ""
            os.sched_yield()
        others = [each for each in _holders(place) if each[0] != launch or (is_rank_0 and each[1] == "0" and each[2])]
        if others:
            own = {str(os.getpid()), *(pid for pid, _ in ancestors())}
            others = [(name, pid) for name, _, pid in others if pid not in own]
        if others:
            return others[0]
        # the highest of four is above the standard streams, one of which may be closed
        sockets = [_socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM) for _ in range(4)]
        claim = max(sockets, key=_socket.socket.fileno)
        _bind(claim, f"{place}/{launch}/{'0' if is_rank_0 else '-'}/{_process_namespace()}/{os.getpid()}")
        os.set_inheritable(claim.detach(), True)
    finally:
        lock.close()
    return None


def is_claimed(port):
    """Whether a launch on this node has claimed `port`, so that its rank 0 will listen there."""
    return bool(_holders(str(port)))


def is_free(port):
    """Whether a server could listen on `port` of this host, over IPv6 and IPv4."""
    return EADDRINUSE not in (_listen("::", port), _listen("", port))


def is_local(address):
    """Whether an address is one of this host, so that a server here could listen on it."""
    return _listen(address, 0) is None


def _listen(address, port):
    """The number of the error of a server that would listen there, None without one.

    This listens only if the port has connections, or had some lately: a rank could connect to it meanwhile.
    """
    number = None
    for reuse in (0, 1):
        try:
            probe = _socket.socket(_socket.AF_INET6 if ":" in address else _socket.AF_INET, _socket.SOCK_STREAM)
        except OSError as error:  # a kernel without this family
            return error.errno
        try:
            probe.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, reuse)
            probe.bind((address, port))
            if reuse:  # as torch does
                probe.listen(1)  # if both servers set SO_REUSEADDR, Linux fails only this
            return None
        except OSError as error:
            number = error.errno
        finally:
            probe.close()
    return number


def _bind(end, name):
    """Bind a socket to a name; false if it is taken."""
    try:
        end.bind(f"\0{NAME}/{name}")
    except OSError as error:
        return error.errno != EADDRINUSE
    return True


def _holders(place):
    """Launch, rank and process, if it has a number here, of each claim on `place`; none if /proc is hidden.

    A claim ends with its process, also if a child of that one has the descriptor.
    """
    start, here, found = f"@{NAME}/{place}/", _process_namespace(), []
    for line in (read("/proc/net/unix") or "").splitlines():
        words = line.partition(start)[2].split("/")
        if len(words) == 4:
            launch, rank, namespace, pid = words
            if namespace != here:
                found.append((launch, rank, ""))
            elif not _has_ended(pid):
                found.append((launch, rank, pid))
    return found


def _has_ended(pid):
    state = process(pid)[1]
    if not state:  # ended, or hidden: with /proc mounted with hidepid=2, other users' processes have no file either
        try:
            os.kill(int(pid), 0)
        except (OSError, ValueError, OverflowError) as error:
            return isinstance(error, ProcessLookupError)
    return state in ("Z", "X")  # a zombie keeps its number until its parent waits for it, proc_pid_stat(5)


def _process_namespace():
    """The number of the namespace in which this process has its process number, 0 where that is hidden."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"

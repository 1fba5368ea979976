# SPDX-License-Identifier: BSD-3-Clause
"""Holds the port where ranks meet, from before Python starts until its process ends.

Torch binds its port seconds after the launcher has found it free. Two launches of a user with one port would both
start, and their ranks would meet. So each rank holds a lock (flock(2)) on a file of the user for this port, on its
node, with the name of the launch in it. Python inherits the lock; it ends with the last process that has it.

The directory is private: other users can neither hold a lock there nor fill it. Against their programs, rank 0 tries
the port. Launches that do not see each other's directory, such as in containers with a /tmp of their own, are not
noticed.
"""

import os

from pytorch_launch import LaunchError, exists
from pytorch_launch.ports import is_free
from pytorch_launch.private import make_private, not_private

#: The lowest descriptor that is neither a standard stream nor one that shells take for these.
FIRST_DESCRIPTOR = 10


def hold_port(world, place, directories):
    """Hold the port of `place` in the first of `directories` that is private and not full, if there is one.

    Raises LaunchError if another launch holds the port, or, on rank 0, if a process listens there: other ranks would
    connect to that process, and wait for it.
    """
    name = f"port-{place.port}"
    if world.node_rank != 0:  # launches with other addresses may have ranks here
        name += f"-{place.address}"
    holder = place.launch  # also if its ranks have no name for it, or no directory works
    for directory in directories:
        try:
            # the second directory is in ~/.cache, which a new user does not have
            missing = [path for path in (os.path.dirname(directory), directory) if not exists(path)]
            if place.launch and not make_private(*missing) and not not_private(directory):
                holder = hold(directory, name, place.launch)
                break
        except OSError:
            continue
    if holder == place.launch and world.rank == 0 and not is_free(int(place.port)):
        holder = "another program, or by one that started this"
    if holder != place.launch:
        fault = f"port {place.port} on {place.address}, the rendezvous of {world.source}, is in use by {holder}"
        raise LaunchError(fault, "start again, or export another MASTER_PORT", rank=world.rank)


def hold(directory, name, launch):
    """Hold the file `name` for `launch`, together with its other ranks; return the launch that holds it.

    A descriptor stays open, also when this process becomes Python. While one rank looks, the others of this node wait
    for the lock of the directory.
    """
    from fcntl import F_DUPFD, LOCK_EX, LOCK_NB, LOCK_SH, fcntl, flock

    holder = launch
    guard = os.open(directory, os.O_RDONLY)
    file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=guard)
    try:
        flock(guard, LOCK_EX)
        try:
            flock(file, LOCK_EX | LOCK_NB)
            os.ftruncate(file, 0)
            os.write(file, os.fsencode(launch))
        except BlockingIOError:
            holder = os.fsdecode(os.read(file, 1000))
        if holder == launch:
            flock(file, LOCK_SH)
            fcntl(file, F_DUPFD, FIRST_DESCRIPTOR)
    finally:
        os.close(file)
        os.close(guard)
    return holder

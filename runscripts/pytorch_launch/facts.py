# SPDX-License-Identifier: BSD-3-Clause
"""What the kernel reports about this process and its node, read once."""

import posix as os

from pytorch_launch import NO_PYTHON, Value, read


class Facts(Value):
    """What a plan depends on beside the environment.

    `host`      name of this host
    `pid`       number of this process
    `launcher`  number of the process that started the ranks of this node, None in a container that hides it
    `cpus`      CPUs on which this process may run, a set
    `uid`       number of the effective user
    `root`      what goes before paths in /sys and /proc: "" on a node, a directory in tests
    """

    __slots__ = ("cpus", "host", "launcher", "pid", "root", "uid")
    DEFAULTS = {"root": ""}


def read_facts(root=""):
    # The parent of this session's leader. MPICH gives every rank a session of its own (setsid(2)), in which a container
    # may have put processes before this one; so neither the parent nor the leader will do.
    launcher = state_and_parent(os.getsid(0))[1]  # getsid is 0 for a leader in another process namespace
    return Facts(
        host=os.uname().nodename,
        pid=os.getpid(),
        launcher=int(launcher) if launcher else None,
        cpus=os.sched_getaffinity(0),
        uid=os.geteuid(),
        root=root,
    )


def state_and_parent(pid):
    """The state of a process, as `R`, and the number of its parent; "" for what cannot be read (proc_pid_stat(5))."""
    text = read(f"/proc/{pid}/stat") or ""
    return (text.rpartition(")")[2].split() + ["", ""])[:2]


#: How far up the program that started a rank is searched; a container adds one or two.
NEAR_ANCESTORS = 8

#: Programs of Open MPI, MPICH, Intel MPI and PALS that start ranks, as the kernel shortens their names.
STARTERS = ("mpirun", "mpiexec", "orted", "prterun", "prted", "prte", "hydra_pmi_proxy", "mpiexec.hydra", "palsd")


def launcher_cpus():
    """The CPUs of the program of MPI that started this process, also through a container; None if it is not found."""
    pid = str(os.getppid())
    for _ in range(NEAR_ANCESTORS):
        text = read(f"/proc/{pid}/stat") or ""
        name, _, more = text.partition("(")[2].rpartition(")")
        if name in STARTERS:
            try:
                return os.sched_getaffinity(int(pid))
            except OSError:
                return None
        pid = (more.split() + ["", ""])[1]
    return None


def output_of(program, arguments, env, *, also_failed=False):
    """The standard output of a program on the PATH of `env`; None if it fails, unless `also_failed`."""
    import os  # most launches start none

    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.dup2(sink, 1)
            os.execvpe(program, [program, *arguments], env)
        finally:
            os._exit(NO_PYTHON)
    os.close(sink)
    with os.fdopen(source, errors="surrogateescape") as output:
        text = output.read()
    return text if os.waitpid(process, 0)[1] == 0 or also_failed else None

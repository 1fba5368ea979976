"""Runs the Python of a rank as a child, its output in the rank's log, and ends as it ended (PYTORCH_LAUNCH_LOG_DIR).

Without a log, the launcher becomes Python. With one it stays, as a program cannot record which signal killed it: one
small process per rank, which sleeps until Python ends, passes signals on, and writes two records into the log.
"""

import _signal
from time import time

from pytorch_launch import NO_PYTHON, LaunchError
from pytorch_launch.copy_output import copy_output
from pytorch_launch.launch import REPORT_GRACE_SECONDS, STDERR, STDOUT, write_error, write_problem
from pytorch_launch.logs import first_failed
from pytorch_launch.records import ENDING, ending, has_lost_another, last_lines, record
from pytorch_launch.system import posix, write

#: Not passed on: they stop and continue all processes of a job, or are this process's own.
NOT_PASSED = ("SIGCONT", "SIGKILL", "SIGPIPE", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")

#: For the output of processes that outlive Python.
DRAIN_SECONDS = 5

#: Between two looks whether another rank has reported its failure.
LOOK_SECONDS = 0.5

SHOWN_LINES, SHOWN_BYTES = 20, 16384

PR_SET_PDEATHSIG = 1  # prctl(2)


def supervise(program, plan, become):
    """Run `become`, which becomes Python, in a child; return its exit status, or end by the signal that killed it."""
    log, world, gpu = plan.log.descriptor, plan.world, plan.devices.gpu
    place = {"local_rank": world.local_rank, "node": world.node, "gpu": gpu.pci if gpu else plan.devices.index}
    _write(log, record("start", {"rank": world.rank, "size": world.size, **place, "time": time()}))
    # where SIGCHLD is ignored, as some programs leave it, the kernel keeps no status of a child
    inherited = _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    blocked = _signal.valid_signals() - {getattr(_signal, name) for name in NOT_PASSED}
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, blocked)

    def start():
        _signal.signal(_signal.SIGCHLD, inherited)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        try:
            become()
        except LaunchError as error:
            write_problem(program, error)

    try:
        if world.rank == 0:
            child, copier = _start_with_terminal(program, log, start)
        else:
            child, copier = _start(log, log, start), None
    except OSError as error:
        remedy = "check the limits of this node (ulimit -a)"
        raise LaunchError(f"cannot start Python: {error.strerror}", remedy) from error
    status, received = _wait(child, blocked)
    if copier is not None:
        _drain(copier)
    end = {"rank": world.rank, **_outcome(status), "after": received}
    _write(log, _line_end(log) + record("end", {**end, "time": time()}))
    if status != 0 and received not in ENDING:
        _report_failure(program, plan, end)
    return _end_as(status)


def _start(stdout, stderr, start):
    """The number of a child with these streams that runs `start`, and is killed with this process."""
    parent = posix.getpid()

    def run():
        try:
            from ctypes import CDLL  # the only way from Python to prctl(2); some Pythons are without

            CDLL(None).prctl(PR_SET_PDEATHSIG, int(_signal.SIGKILL))
        except (ImportError, OSError, AttributeError):
            pass
        if posix.getppid() == parent:
            posix.dup2(stdout, STDOUT)
            posix.dup2(stderr, STDERR)
            start()

    return _fork(run)


def _start_with_terminal(program, log, start):
    """The numbers of the child of `_start`, and of one that copies its output to the terminal and to `log`."""
    pipes = [posix.pipe(), posix.pipe()]
    (reading_out, out), (reading_error, error) = pipes
    warning = f"{program}: cannot write the log of rank 0: {{}}. The terminal has its output\n"

    def run():
        posix.close(out)
        posix.close(error)
        streams = {reading_out: STDOUT, reading_error: STDERR}
        copy_output(streams, log, lambda fault: write_error(warning.format(fault.strerror)))
        posix._exit(0)

    copier = _fork(run)
    child = _start(out, error, start)
    for ends in pipes:
        for end in ends:
            posix.close(end)
    return child, copier


def _fork(run):
    """The number of a child that runs `run`, which does not return."""
    child = posix.fork()
    if child == 0:
        try:
            run()
        finally:
            posix._exit(NO_PYTHON)
    return child


def _wait(child, signals):
    """Wait for `child`, and pass `signals` on to it; return its status, and the name of a signal that it received.

    This is the first of ENDING, else the last. Signals of a terminal come from the kernel, for all its processes.
    """
    received = None
    while True:
        found = _signal.sigwaitinfo(signals)
        if found.si_signo == _signal.SIGCHLD:
            pid, status = posix.waitpid(child, posix.WNOHANG)
            if pid:
                return status, received
            continue
        if received not in ENDING:
            received = _name(found.si_signo)
        if found.si_code <= 0:  # sigaction(2): from a process
            posix.kill(child, found.si_signo)


def _drain(copier):
    """Wait until `copier` has read the rest, or DRAIN_SECONDS: then another process keeps the pipe open."""
    deadline = time() + DRAIN_SECONDS
    while posix.waitpid(copier, posix.WNOHANG)[0] == 0 and time() < deadline:
        _signal.sigtimedwait([_signal.SIGCHLD], max(0, deadline - time()))


def _outcome(status):
    if posix.WIFSIGNALED(status):
        return {"signal": _name(posix.WTERMSIG(status))}
    return {"status": posix.WEXITSTATUS(status)}


def _name(number):
    """The name of a signal; signal.Signals would import `enum`."""
    names = [name for name in dir(_signal) if name.startswith("SIG") and name.isalnum()]
    return next((name for name in names if getattr(_signal, name) == number), f"signal{number}")


def _write(log, text):
    """Write to the log; if it is full, Python has its output there too, and the step shows how it ended."""
    try:
        write(log, text)
    except OSError:
        return


def _line_end(log):
    """The end of the last line, if it has none."""
    return "" if _tail(log, 1) == "\n" else "\n"


def _tail(log, count):
    size = posix.fstat(log).st_size
    return posix.pread(log, count, max(0, size - count)).decode(errors="replace")


def _report_failure(program, plan, end):
    """Print the last lines of this rank, if it is the first that failed.

    The file system decides which rank is the first, as the clocks of nodes differ: one makes the link.
    """
    log, world = plan.log, plan.world
    last = last_lines(_tail(log.descriptor, SHOWN_BYTES), SHOWN_LINES)
    if has_lost_another(last) and _is_reported_within(REPORT_GRACE_SECONDS, first_failed(log)):
        return
    try:
        posix.symlink(log.path.rpartition("/")[2], first_failed(log))
    except OSError:
        return
    how = ending({name: value for name, value in end.items() if value is not None})
    head = f"{program}: rank {world.rank} on {world.node} {how}, the first that failed."
    lines = [f"    {line}\n" for line in last if world.rank != 0]  # the terminal has those of rank 0
    write_error(f"{head} {'Its last lines' if lines else 'Its log'}: {log.path}\n{''.join(lines)}")
    write_error(f"{program}: to compare all ranks, run: pytorch-doctor --job {log.directory}\n")


def _is_reported_within(seconds, link):
    """Whether the rank that this one lost makes the `link`, or the launcher ends this rank, before `seconds` are over.

    A Python that ends closes its connections before it has ended. If this rank exited first, it would end that one.
    """
    deadline = time() + seconds
    while time() < deadline:
        try:
            posix.lstat(link)
            return True
        except OSError:
            if _signal.sigtimedwait([_signal.SIGTERM], LOOK_SECONDS):
                return True
    return False


def _end_as(status):
    """End this process by the signal that ended the child, so that srun and mpirun see it; else return the status."""
    if not posix.WIFSIGNALED(status):
        return posix.WEXITSTATUS(status)
    number = posix.WTERMSIG(status)
    try:
        from resource import RLIMIT_CORE, setrlimit

        setrlimit(RLIMIT_CORE, (0, 0))  # the child's own core file stays
    except (ImportError, OSError, ValueError):
        pass
    if number != _signal.SIGKILL:
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, [number])
    posix.kill(posix.getpid(), number)
    return 128 + number  # as process 1 of a container, which no such signal ends

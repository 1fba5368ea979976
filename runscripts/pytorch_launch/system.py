# SPDX-License-Identifier: BSD-3-Clause
"""Calls to the operating system for which Python has `os`, `signal` and their like.

These import modules that a bare Python does not need. Of the 24 million instructions of a start (Python 3.11),
`os` in place of `posix` would cost 20 %, `signal` in place of `_signal` 78 %, `socket` in place of `_socket` 123 %.
"""

import _signal  # in place of `signal`: saves 19.2 million instructions
import posix  # in place of `os`: saves 5.0 million instructions
import stat
import sys

#: Exit status of a child that cannot run its program, as in a shell.
NOT_STARTED = 127
ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


def environment():
    """The variables of this process, name to value, as `os.environ` has them."""
    return {name.decode(*ENCODING): value.decode(*ENCODING) for name, value in posix.environ.items()}


def write(stream, text):
    """Write `text` to a file descriptor at once, so that lines of several ranks stay intact. Raises OSError.

    A file that reaches its limit takes the first part (write(2)); writing the rest is the error.
    """
    rest = text.encode(*ENCODING)
    while rest:
        rest = rest[posix.write(stream, rest) :]


def exists(path):
    """Whether there is a file or directory at `path`."""
    try:
        posix.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return False
    return True


def is_file(path):
    """Whether there is something at `path` that is not a directory."""
    try:
        return not stat.S_ISDIR(posix.stat(path).st_mode)
    except OSError:
        return False


def read(path):
    """The text of a small file without the white space around it, None if it cannot be read."""
    try:
        # open() would cost several times as much as the reading itself
        file = posix.open(path, posix.O_RDONLY)
        try:
            return posix.read(file, 65536).decode().strip()
        finally:
            posix.close(file)
    except OSError:
        return None


def read_table(path):
    """All text of a file of /proc, None if it cannot be read; one read(2) returns a page or so."""
    data = read_bytes(path)
    return None if data is None else data.decode(errors="replace")


def read_bytes(path):
    """All bytes of a file, None if it cannot be read."""
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
    return b"".join(parts)


def names(directory):
    """The names in a directory, none if it cannot be read."""
    try:
        return posix.listdir(directory)
    except OSError:
        return []


def state_and_parent(pid):
    """The state of a process, as `R`, and the number of its parent; "" for what cannot be read (proc_pid_stat(5))."""
    text = read_table(f"/proc/{pid}/stat") or ""
    return (text.rpartition(")")[2].split() + ["", ""])[:2]


def become(program, arguments, variables):
    """Replace this process by the first `program` on the PATH of `variables`, as execvpe(3) does.

    Raises FileNotFoundError if there is none, OSError if it cannot be started.
    """
    denied = None
    for directory in variables.get("PATH", "/bin:/usr/bin").split(":"):
        path = f"{directory or '.'}/{program}"
        try:
            posix.execve(path, [program, *arguments], variables)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if is_file(path):  # not in a directory without permission, such as root's in some images
                denied = denied or error
    raise denied or FileNotFoundError(program)


def output_of(program, arguments, variables):
    """The standard output of the first `program` on the PATH of `variables`, None if there is none or it fails."""
    source, sink = posix.pipe()
    process = posix.fork()
    if process == 0:
        try:
            posix.dup2(sink, 1)
            become(program, arguments, variables)
        except OSError:
            posix._exit(NOT_STARTED)
    posix.close(sink)
    parts = []
    while not parts or parts[-1]:
        parts.append(posix.read(source, 1 << 16))
    posix.close(source)
    status = posix.waitpid(process, 0)[1]
    return b"".join(parts).decode(*ENCODING) if status == 0 else None


def reset_signals():
    """Restore the default of the two signals that this interpreter ignores.

    Python itself starts the same without this, but a `python` that is a wrapper in shell inherits them.
    """
    for signal in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(signal, _signal.SIG_DFL)


def is_terminated_within(seconds):
    """Wait for SIGTERM, at most `seconds`; return whether it came."""
    _signal.pthread_sigmask(_signal.SIG_BLOCK, [_signal.SIGTERM])
    return _signal.sigtimedwait([_signal.SIGTERM], seconds) is not None

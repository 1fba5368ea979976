"""What this package needs of `os` beyond its core, the built-in module `posix`; called by `launch` and others.

Importing `os` itself takes a fifth of the instructions that a bare Python takes to start, on every rank.
"""

import _stat  # the core of `stat`
import posix
import sys

ENCODING = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()


def environment():
    """The variables of this process, name to value, as `os.environ` would have them."""
    return {name.decode(*ENCODING): value.decode(*ENCODING) for name, value in posix.environ.items()}


def write(stream, text):
    """Write `text` to a file descriptor at once, so that lines of several ranks stay whole. Raises OSError.

    A file that reaches its limit takes the first part alone (write(2)); writing the rest is the error.
    """
    rest = text.encode(*ENCODING)
    while rest:
        rest = rest[posix.write(stream, rest) :]


def exists(path):
    """Whether there is a file or directory at `path`."""
    try:
        posix.stat(path)
    except (OSError, ValueError):  # a name with a zero byte is none
        return False
    return True


def is_file(path):
    """Whether there is something at `path` that is no directory."""
    try:
        return not _stat.S_ISDIR(posix.stat(path).st_mode)
    except OSError:
        return False


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
            if is_file(path):  # not in a directory that is closed to us, as root's are in some images
                denied = denied or error
    raise denied or FileNotFoundError(program)

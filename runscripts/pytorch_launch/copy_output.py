"""Copies the output of rank 0 to the terminal and to its log, in a process that no signal of the job ends."""

import select

from pytorch_launch.system import posix

CHUNK = 1 << 16


def copy_output(sources, log, report):
    """Copy each of `sources`, from a pipe to a stream, to that stream and to `log`, until all pipes have ended.

    The terminal gets text as it comes, so that progress bars move; the log gets whole lines, so that those of two
    streams do not mix. A destination that is closed or full loses what it cannot take, and the others get it: training
    continues. `report` is called once with an error of the log.
    """
    poll = select.poll()
    for pipe in sources:
        poll.register(pipe, select.POLLIN)
    rests = dict.fromkeys(sources, b"")
    while sources:
        for pipe, _ in poll.poll():
            data = posix.read(pipe, CHUNK)
            if data:
                _copy(sources[pipe], data)
                end = max(data.rfind(b"\n"), data.rfind(b"\r"), len(data) - 1 if len(rests[pipe]) > CHUNK else -1) + 1
                lines, rests[pipe] = (rests[pipe] + data[:end], data[end:]) if end else (b"", rests[pipe] + data)
            else:
                poll.unregister(pipe)
                del sources[pipe]
                lines = rests[pipe]
            error = _copy(log, lines)
            if error is not None and report is not None:
                report(error)
                report = None


def _copy(destination, data):
    """Write `data`, and wait for a terminal that another process made non-blocking; return an OSError or None."""
    while data:
        try:
            data = data[posix.write(destination, data) :]
        except BlockingIOError:
            ready = select.poll()
            ready.register(destination, select.POLLOUT)
            ready.poll()
        except OSError as error:
            return error
    return None

"""The lines about a rank in its log: how it started and how it ended. The launcher writes them, `pytorch-doctor` reads.

    >>> record("end", {"rank": 5, "status": 1, "time": 0})
    'pytorch-launch: end rank=5 status=1 time=1970-01-01T00:00:00.000Z\\n'
"""

from time import gmtime, strftime

MARK = "pytorch-launch:"

#: Signals by which a launcher or a user ends a rank; a rank that ends after one of them did not fail by itself.
ENDING = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM")

#: Messages of a rank that lost another one.
LOST_ANOTHER = (
    # gloo/transport/tcp/pair.cc, and errno(3) of its sockets
    *("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Application timeout caused pair"),
    # gloo/transport/tcp/unbound_buffer.cc
    *("Timed out waiting", "Connect timeout"),
    # nccl.h, ncclGetErrorString of ncclRemoteError
    "remote process exited or there was a network error",
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp
    *("Watchdog caught collective operation timeout", "NCCL communicator was aborted"),
    # torch/csrc/distributed/c10d: socket.cpp, TCPStore.cpp
    *("failed to recv, got 0 bytes", "Failed to recv", "wait timeout after", "Socket Timeout"),
)


def record(event, fields):
    """A line with the `event`, "start" or "end", and name=value for each of `fields` that is not None.

    The field `time` is in seconds since 1970, and written in UTC. Values have no white space.
    """
    words = [MARK, event]
    for name, value in fields.items():
        if value is not None:
            words.append(f"{name}={timestamp(value) if name == 'time' else value}")
    return " ".join(words) + "\n"


def timestamp(seconds):
    """A time as `2026-11-23T09:41:00.123Z`."""
    milliseconds = int(seconds * 1000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d}Z"


def last_lines(text, count):
    """The last `count` lines of `text` that are neither empty nor records.

    Of a line that a progress bar overwrote, only what was visible at the end.
    """
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return [line for line in lines if line and not line.startswith(MARK)][-count:]


def last_report(lines):
    """The lines from the last traceback on, else all. PyTorch writes `[rank2]: ` before each line of one."""
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    return lines[starts[-1] :] if starts else lines


def has_lost_another(lines):
    """Whether the last lines of a rank report that it lost another rank, or waited too long for it."""
    return any(message in line for line in last_report(lines) for message in LOST_ANOTHER)


def ending(fields):
    """How a rank ended, from the fields of its record `end`: `exited with status 1`, `was killed by SIGKILL`."""
    how = f"was killed by {fields['signal']}" if "signal" in fields else f"exited with status {fields.get('status')}"
    return f"{how} after {fields['after']}" if "after" in fields and fields["after"] != fields.get("signal") else how

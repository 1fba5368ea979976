"""The progress that a long command prints."""

import io
import os
from types import SimpleNamespace

import pytest

from testbed import progress


class Output(io.StringIO):
    """Standard output that is a terminal, or not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


class Arrivals:
    """The output of a process, second by second: bytes that arrive, or None. It has its own `select` and clock."""

    def __init__(self, arrivals, before_each):
        self.reader, self.writer = os.pipe()
        self.arrivals, self.before_each, self.now = iter(arrivals), before_each, 100.0

    def fileno(self):
        return self.reader

    def monotonic(self):
        return self.now

    def select(self, *_):
        self.before_each()
        arrived = next(self.arrivals, b"")
        if arrived is None:
            self.now += 1
            return [], [], []
        if arrived:
            os.write(self.writer, arrived)
        else:
            os.close(self.writer)
        return [self], [], []


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_are_printed_when_they_arrive_and_a_terminal_shows_the_seconds_between(is_terminal, monkeypatch):
    output, shown = Output(is_terminal), []
    pipe = Arrivals([b"first\n", None, b"second\n\nlast \377"], lambda: shown.append(output.getvalue()))
    monkeypatch.setattr(progress.sys, "stdout", output)
    monkeypatch.setattr(progress, "select", pipe)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=pipe.monotonic))
    assert progress.relay(pipe) == "first\nsecond\n\nlast \ufffd\n"
    os.close(pipe.reader)
    clear = "\r\033[K" if is_terminal else ""
    silence = f"{clear}  ... 1 s" if is_terminal else ""
    first, *others = (f"{clear}  {line}" for line in ("first\n", "second\n", "\n", "last \ufffd\n"))
    assert shown == ["", first, first + silence, first + silence + "".join(others[:2])]
    assert output.getvalue() == first + silence + "".join(others)

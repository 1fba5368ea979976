"""The progress that a long command prints."""

import io
import subprocess
import time

import pytest

from testbed import progress


class Output(io.StringIO):
    """Standard output that records the time of each line."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal
        self.times = []

    def isatty(self):
        return self.is_terminal

    def write(self, text):
        self.times.append(time.monotonic())
        return super().write(text)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_are_printed_when_they_arrive_and_a_terminal_shows_the_seconds_between(is_terminal, monkeypatch):
    output = Output(is_terminal)
    monkeypatch.setattr(progress.sys, "stdout", output)
    command = ["sh", "-c", r"echo first; sleep 1.5; printf 'second\n\nlast \377'"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert progress.relay(process.stdout) == "first\nsecond\n\nlast \ufffd\n"
    clear = "\r\033[K" if is_terminal else ""
    silence = f"{clear}  ... 1 s" if is_terminal else ""
    lines = ["first\n", "second\n", "\n", "last \ufffd\n"]
    assert output.getvalue() == f"{clear}  ".join(["", lines[0]]) + silence + "".join(
        f"{clear}  {line}" for line in lines[1:]
    )
    assert output.times[-1] - output.times[0] > 1

"""The progress that a long command prints."""

import io
import subprocess

import pytest

from testbed import progress

#: Prints lines, and one that is not text and has no end; some seconds are between the first and the second.
COMMAND = r"echo first; sleep 2.5; printf 'second\n\nlast \377'"


class Output(io.StringIO):
    """Standard output that is a terminal, or not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
def test_lines_are_printed_when_they_arrive_and_a_terminal_shows_the_seconds_between(is_terminal, monkeypatch):
    output = Output(is_terminal)
    monkeypatch.setattr(progress.sys, "stdout", output)
    with subprocess.Popen(["bash", "-c", COMMAND], stdout=subprocess.PIPE) as process:
        assert progress.relay(process.stdout) == "first\nsecond\n\nlast \ufffd\n"
    clear = "\r\033[K" if is_terminal else ""
    first, *others = (f"{clear}  {line}" for line in ("first\n", "second\n", "\n", "last \ufffd\n"))
    shown = output.getvalue()
    assert shown.startswith(first) and shown.endswith("".join(others))
    assert (f"{clear}  ... 1 s" in shown[len(first) : -len("".join(others))]) == is_terminal

"""Counting instructions and calls, and ranks of worlds that never ran."""

import os

import pytest

from benchmarks import counts
from benchmarks.session import Session
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from testbed.packages import find_optional

TRACE = """\
12 openat(AT_FDCWD, "/shared/lib/torch.py", O_RDONLY) = 3
12 newfstatat(3, "/shared", {st_mode=S_IFDIR}) = 0
13 readlink("/shared2/x", 0x7ffd, 4096) = -1 ENOENT (No such file or directory)
13 stat("/shared/scratch/here", 0x7ffd) = -1 ENOENT (No such file or directory)
12 +++ exited with 0 +++
"""


@pytest.fixture
def count(tmp_path):
    """A function that counts the instructions of a command."""
    if not find_optional("valgrind"):
        pytest.skip("no valgrind here")
    env = {"PATH": os.environ["PATH"]}
    return lambda *command: counts.count_instructions(Session(None, tmp_path), env, command)


@pytest.mark.slow
def test_a_program_counts_also_if_it_becomes_another_one_or_starts_others(count):
    true = count("/bin/true")
    assert count("/bin/sh", "-c", "exec /bin/true") == pytest.approx(true + count("/bin/sh", "-c", ":"), rel=0.05)
    assert count("/bin/sh", "-c", "/bin/true; /bin/true; :") > 2 * true


@pytest.mark.slow
def test_the_count_is_nearly_the_same_every_time_and_a_command_that_fails_is_an_error(count):
    first, second = (count("/bin/sh", "-c", "for i in 1 2 3; do echo $i; done") for _ in range(2))
    assert first == pytest.approx(second, rel=0.01)
    with pytest.raises(Error, match="status 7"):
        count("/bin/sh", "-c", "exit 7")


def test_calls_below_a_directory_count_and_those_in_the_scratch_directory_do_not():
    assert counts.count_calls(TRACE, ["/shared"], "/shared/scratch") == 2

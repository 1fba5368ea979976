"""Counting instructions."""

import os

import pytest

from benchmarks import instructions
from benchmarks.instructions import count_instructions
from benchmarks.session import Session
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from testbed.packages import find_optional


@pytest.fixture
def count(tmp_path):
    """A function that counts the instructions of a command."""
    if not find_optional("valgrind"):
        pytest.skip("no valgrind here")
    env = {"PATH": os.environ["PATH"]}
    return lambda *command: count_instructions(Session(None, tmp_path), env, command)


def test_a_program_counts_also_if_it_becomes_another_one(count):
    true, both = count("/bin/true"), count("/bin/sh", "-c", "exec /bin/true")
    shell = count("/bin/sh", "-c", ":")
    assert both == pytest.approx(true + shell, rel=0.05)


def test_a_program_counts_with_those_that_it_starts(count):
    true, three = count("/bin/true"), count("/bin/sh", "-c", "/bin/true; /bin/true; :")
    assert three > 2 * true


def test_the_count_is_nearly_the_same_every_time(count):
    first, second = (count("/bin/sh", "-c", "for i in 1 2 3; do echo $i; done") for _ in range(2))
    assert first == pytest.approx(second, rel=0.01)


def test_a_command_that_fails_is_an_error(count):
    with pytest.raises(Error, match="status 7"):
        count("/bin/sh", "-c", "exit 7")


def test_without_valgrind_the_error_reports_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(instructions, "find_optional", lambda _: None)
    with pytest.raises(Error, match="apt-get install valgrind"):
        count_instructions(Session(None, tmp_path), {}, ["/bin/true"])

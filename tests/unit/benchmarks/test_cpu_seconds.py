"""The CPU time of a task."""

import subprocess
import sys

import pytest

import testbed.layout
from benchmarks.comparison import PROGRAMS
from benchmarks.experiments import job
from benchmarks.programs.cpu_seconds import find_reports


@pytest.fixture
def cpu_seconds():
    """A function that runs Python code behind `cpu_seconds.py`; it returns the completed process."""

    def run(code):
        command = [PROGRAMS / "cpu_seconds.py", sys.executable, "-S", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_cpu_seconds_are_those_of_the_command_and_of_its_children(cpu_seconds):
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {burn!r}])"
    for code in (burn, child):
        output = cpu_seconds(code).stdout
        assert output.startswith("CPU seconds: ")
        (seconds,) = find_reports(output)
        assert 0.2 < seconds < 5


def test_cpu_seconds_of_a_command_that_fails_are_a_failure(cpu_seconds):
    assert cpu_seconds("raise SystemExit(7)").returncode == 7


def test_the_reports_of_all_tasks_are_found_between_other_lines():
    assert find_reports("hello\nCPU seconds: 1.5\nbye\nCPU seconds: 0.25\n") == [1.5, 0.25]


class Session:
    """A session in which each task but the first of `srun -n2` is silent."""

    def environment(self, _command):
        return {}

    def run(self, _command, _env):
        return "CPU seconds: 1.5\n"


def test_a_job_of_which_a_task_reports_nothing_is_a_failure():
    with pytest.raises(testbed.layout.TestbedError, match="1 tasks of 2"):
        job.cpu(Session())()

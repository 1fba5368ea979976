"""The doctor's deadline: checks that hang, fail or are interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, OK, ok
from pytorch_doctor.doctor import run_all

from testbed.processes import is_running

# The deadline


def test_a_check_that_hangs_is_a_failure_and_the_others_have_their_say():
    def hang(_):
        subprocess.run(["sleep", "infinity"], check=False)

    checks = {"torch": lambda _: ok("fine"), "stuck": hang, "gpu": hang, "other": hang}
    findings = run_all(checks, None, 1)
    assert [finding.check for finding in findings] == [*checks]
    assert [finding.verdict for finding in findings] == [OK, FAIL, FAIL, FAIL]
    assert "no answer within 1 s" in findings[1].finding


def test_what_a_check_did_not_foresee_is_its_failure(tmp_path):
    def surprise(_):
        raise ValueError("odd")

    def closed(_):
        (tmp_path / "absent").read_text()

    checks = {"torch": surprise, "gpu": closed, "driver": lambda _: ok("fine"), "four": lambda _: os._exit(0)}
    one, two, three, four = run_all(checks, None, 60)
    assert (one.verdict, one.finding) == (FAIL, "ValueError: odd")
    assert two.finding == f"{tmp_path}/absent: No such file or directory"
    assert three.verdict == OK
    assert four.finding == "ended without an answer"


INTERRUPTED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pytorch_doctor import doctor
def hang(_):
    sleep = subprocess.Popen(["sleep", "1000"])
    os.write(1, f"{sleep.pid}\\n".encode())
    sleep.wait()
doctor.CHECKS = {"home": hang, "caches": hang}
sys.exit(doctor.main(["--only", "home,caches"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_doctor_that_is_interrupted_ends_what_it_has_started_without_a_traceback(runscripts, number, status):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, runscripts], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    started = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(number)
    # the pipes end with the last process that has them
    assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == status
    assert not [pid for pid in started if is_running(pid)]


def test_a_signal_between_the_start_of_a_check_and_the_note_of_it_ends_the_check_too(runscripts):
    at_once = """
import signal
fork = os.fork
def fork_and_interrupt():
    process = fork()
    if process:
        os.kill(os.getpid(), signal.SIGTERM)
    return process
os.fork = fork_and_interrupt
sys.exit("""
    code = at_once.join(INTERRUPTED.rsplit("sys.exit(", 1))
    process = subprocess.Popen([sys.executable, "-c", code, runscripts], stdout=subprocess.PIPE, text=True)
    started = [int(line) for line in process.communicate(timeout=300)[0].splitlines()]
    assert process.returncode == 143
    assert not [pid for pid in started if is_running(pid)]


def test_a_recipe_that_cannot_be_read_holds_up_nothing(installation, doctor):
    """Neither a FIFO, nor a file system that never answers, which each check meets within its deadline."""
    env = installation()
    recipe_file = Path(env["EBROOTPYTORCH"], "easybuild", "PyTorch-2.13.0.eb")
    recipe_file.unlink()
    os.mkfifo(recipe_file)
    done = doctor("--timeout", "200", "--only", "module", **env)
    assert done.returncode == 0, done.stdout
    assert "(venv)" in done.stdout

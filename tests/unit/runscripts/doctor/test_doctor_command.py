"""The doctor: options, exit status, closed streams, the table and JSON; checks that hang, fail or are interrupted."""

import json
import os
import signal
import subprocess
import sys

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, ok
from pytorch_doctor import doctor as doctor_module
from pytorch_doctor.doctor import run_all


def test_without_a_module_it_reports_what_to_load_and_fails_and_checks_that_pass_are_success(doctor):
    done = doctor()
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "verdict", "finding"]
    assert lines[2].split()[:2] == ["module", "FAIL"] and "-> module load PyTorch/<version>" in lines[3]
    inherited = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}
    done = doctor("--only", "torch,disk", "--json", **inherited)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (0, OK)
    assert [row["check"] for row in found["checks"]] == ["disk", "torch"]


@pytest.mark.parametrize(
    ("variables", "is_reported"),
    [
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, False),
        ({"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1"}, False),
        ({"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}, False),
    ],
)
def test_the_first_task_reports_for_its_node(doctor, variables, is_reported):
    done = doctor("--only", "disk", **variables)
    assert (done.returncode, bool(done.stdout)) == (0, is_reported)


def test_variables_of_flux_around_a_step_of_slurm_do_not_silence_it(doctor):
    flux = {"FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1"}
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}
    # the task of the step started with them
    script = 'SLURM_TASK_PID=$$ exec bash -c \'"$0" --only disk; true\' "$0"'
    assert doctor(script=script, **flux, **step).stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--only nope", "argument --only: no check 'nope': the checks are disk, module, torch, versions, gpu, network"),
        ("--timeout 0", "argument --timeout: 0 is not a number from 1 to 999999"),
        ("--timeout 999999999999", "999999999999 is not a number"),
        ("--nothing", "unrecognized arguments: --nothing"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_one_line(doctor, arguments, message):
    done = doctor(*arguments.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("pytorch-doctor: ") and message in done.stderr


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('"$0" --only torch >/dev/full', "cannot write to standard output: No space left on device. Check its disk"),
        ('"$0" --only torch | true; exit ${PIPESTATUS[0]}', None),
    ],
)
def test_output_that_is_not_read_and_a_full_disk_are_no_traceback(doctor, script, message):
    done = doctor(script=script)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", bool(message))
    assert done.stderr.startswith(f"pytorch-doctor: {message}" if message else "")


def test_a_check_that_hangs_is_a_failure_and_those_after_it_are_not_run(monkeypatch):
    def hang(_):
        subprocess.run(["sleep", "infinity"], check=False)

    monkeypatch.setattr(doctor_module, "CHECKS", {"one": lambda _: ok("fine"), "two": hang, "three": hang})
    findings = run_all(["one", "two", "three"], None, 1)
    assert [(finding.check, finding.verdict) for finding in findings] == [
        ("one", OK),
        ("two", FAIL),
        ("three", NOT_APPLICABLE),
    ]
    assert findings[1].finding == "no answer within 1 s"


def test_what_a_check_did_not_foresee_is_its_failure(monkeypatch, tmp_path):
    def surprise(_):
        raise ValueError("odd")

    def closed(_):
        (tmp_path / "absent").read_text()

    checks = {"one": surprise, "two": closed, "three": lambda _: ok("fine"), "four": lambda _: os._exit(0)}
    monkeypatch.setattr(doctor_module, "CHECKS", checks)
    one, two, three, four = run_all(list(checks), None, 60)
    assert (one.verdict, one.finding) == (FAIL, "ValueError: odd")
    assert two.finding == f"[Errno 2] No such file or directory: '{tmp_path}/absent'"
    assert (three.verdict, four.verdict) == (OK, FAIL)


INTERRUPTED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pytorch_doctor import doctor
def hang(_):
    sleep = subprocess.Popen(["sleep", "1000"])
    os.write(1, b"\\n")
    sleep.wait()
doctor.CHECKS = {"disk": hang}
sys.exit(doctor.main(["--only", "disk"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_doctor_that_is_interrupted_ends_what_it_has_started_without_a_traceback(runscripts, number, status):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED, runscripts], **pipes)
    assert process.stdout.readline() == "\n"
    process.send_signal(number)
    # the pipes end with the last process that has them
    assert (process.communicate(timeout=300)[1], process.returncode) == ("", status)


def test_a_doctor_that_is_interrupted_while_it_starts_its_checks_ends_them(runscripts):
    code = """
import os, time
fork = os.fork
def fork_and_interrupt():
    process = fork()
    if process:
        time.sleep(1)
        os.kill(os.getpid(), 15)
    return process
os.fork = fork_and_interrupt
"""
    command = [sys.executable, "-c", code + INTERRUPTED, runscripts]
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=60).returncode == 143


def test_a_switch_that_is_neither_0_nor_1_is_the_users(doctor, installation):
    done = doctor("--only", "torch", PYTORCH_LAUNCH_KEEP_PATHS="false", **installation())
    assert "PYTORCH_LAUNCH_KEEP_PATHS=false is neither 0 nor 1" in done.stdout and "bug" not in done.stdout

"""The doctor: options, exit status, closed streams, the table and JSON; checks that hang, fail or are interrupted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN, Finding, context, ok
from pytorch_doctor.checks import installation as installation_checks
from pytorch_doctor.doctor import as_json, as_table, run_all


def test_without_a_module_it_reports_what_to_load_and_fails_and_checks_that_pass_are_success(doctor):
    done = doctor()
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "verdict", "finding"]
    assert lines[1].split()[:2] == ["module", "FAIL"] and "-> module load PyTorch/<version>" in lines[2]
    done = doctor("--only", "home,caches", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (0, OK)
    assert [row["check"] for row in found["checks"]] == ["caches", "home"]


@pytest.mark.parametrize(
    "arguments", [("--only", "homes"), ("--timeout", "0"), ("--timeout", "9" * 12), ("--nothing",)]
)
def test_an_option_that_makes_no_sense_is_refused(doctor, arguments):
    done = doctor(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: pytorch-doctor" in done.stderr


@pytest.mark.parametrize(
    "second",
    [{"SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"}, {"FLUX_TASK_LOCAL_ID": "1"}, {"PALS_LOCAL_RANKID": "1"}],
    ids=["srun", "flux run", "PALS"],
)
def test_the_first_task_of_a_node_speaks_for_it(doctor, second):
    done = doctor(**second)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_works_through_the_link_in_the_modules_bin_without_the_modules_python(installation, doctor, runscripts):
    env = installation()
    root = Path(env["EBROOTPYTORCH"])
    program(root / "bin" / "python3", "exit 3")  # which may be broken
    shutil.rmtree(root / "runscripts")
    shutil.copytree(runscripts, root / "runscripts")
    (root / "bin" / "pytorch-doctor").symlink_to("../runscripts/pytorch-doctor")
    done = doctor(script="pytorch-doctor --only module", **env)
    assert done.returncode == 0, done.stderr
    assert "PyTorch/2.13.0-cpu (venv), profile lumi" in done.stdout


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('"$0" --only slurm >/dev/full', "cannot write to standard output: No space left on device. Check its disk"),
        ('"$0" --only slurm | true; exit ${PIPESTATUS[0]}', None),
        (
            'ulimit -n 6; "$0" --only home,slurm,caches',
            "cannot start the checks: Too many open files.",
        ),
    ],
)
def test_output_that_is_not_read_a_full_disk_and_limits_are_no_traceback(doctor, script, message):
    done = doctor(script=script)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", bool(message))
    assert done.stderr.startswith(f"pytorch-doctor: {message}" if message else "")


def test_a_value_that_is_no_text_is_printed_as_it_is(doctor):
    done = doctor(script="""EBROOTPYTORCH=$'/x\\xff' "$0" --only module | od -An -c""")
    assert "E B R O O T P Y T O R C H = / x 377" in " ".join(done.stdout.split()), done.stderr


# What is printed

FINE, BROKEN = Finding(OK, "fine", "", "one"), Finding(FAIL, "broken", "mend it", "five")


def test_a_table_has_a_line_for_each_check_and_each_remedy_faults_alone_name_the_node_and_json_the_worst():
    found = [FINE, BROKEN]
    lines = ["check  verdict  finding", "one    ok       fine", "five   FAIL     broken", "                -> mend it"]
    assert as_table("n1", found).splitlines() == [*lines, "n1: 1 ok, 1 FAIL"]
    faults = ["n1: 1 ok, 1 FAIL", *(f"n1: {line}" for line in lines[2:])]
    assert as_table("n1", found, faults_only=True).splitlines() == faults
    warned = [Finding(NOT_APPLICABLE, "nothing", "", "one"), Finding(WARN, "", "", "two")]
    assert [json.loads(as_json("n1", shown))["verdict"] for shown in (found, warned, warned[:1])] == [FAIL, WARN, OK]


# The deadline


def test_a_check_that_hangs_is_a_failure_and_the_others_have_their_say():
    def hang(_):
        subprocess.run(["sleep", "infinity"], check=False)

    checks = {"torch": lambda _: ok("fine"), "stuck": hang, "gpu": hang, "other": hang}
    findings = [(finding.check, finding.verdict, finding.finding) for finding in run_all(checks, None, 1)]
    assert findings == [("torch", OK, "fine"), *((name, FAIL, "no answer within 1 s") for name in [*checks][1:])]


def test_what_a_check_did_not_foresee_is_its_failure(tmp_path):
    def surprise(_):
        raise ValueError("odd")

    def closed(_):
        (tmp_path / "absent").read_text()

    checks = {"torch": surprise, "gpu": closed, "driver": lambda _: ok("fine"), "four": lambda _: os._exit(0)}
    one, two, three, four = run_all(checks, None, 60)
    assert (one.verdict, one.finding) == (FAIL, "ValueError: odd")
    assert two.finding == f"[Errno 2] No such file or directory: '{tmp_path}/absent'"
    assert three.verdict == OK
    assert four.finding == "ended without an answer"


INTERRUPTED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from pytorch_doctor import doctor
def hang(_):
    sleep = subprocess.Popen(["sleep", "1000"])
    os.write(1, b"\\n")
    sleep.wait()
doctor.CHECKS = {"home": hang, "caches": hang}
sys.exit(doctor.main(["--only", "home,caches"]))
"""


#: A signal between the start of a check and the note of it.
AT_ONCE = """
import os, signal
fork = os.fork
def fork_and_interrupt():
    process = fork()
    if process:
        os.kill(os.getpid(), signal.SIGTERM)
    return process
os.fork = fork_and_interrupt
"""


@pytest.mark.parametrize(
    ("before", "number", "status"), [("", signal.SIGINT, 130), ("", signal.SIGTERM, 143), (AT_ONCE, None, 143)]
)
def test_a_doctor_that_is_interrupted_ends_what_it_has_started_without_a_traceback(runscripts, before, number, status):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", before + INTERRUPTED, runscripts], **pipes)
    if number:
        assert [process.stdout.readline() for _ in range(2)] == ["\n"] * 2
        process.send_signal(number)
    # the pipes end with the last process that has them
    assert (process.communicate(timeout=300)[1], process.returncode) == ("", status)


def test_the_installation_is_read_by_checks_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(context, "read_recipe", lambda _: time.sleep(1000))
    here = context.Context({"EBROOTPYTORCH": str(tmp_path / "absent"), "SIFPYTORCH": "/x.sif"})
    (found,) = run_all({"image": installation_checks.check_image}, here, 1)
    assert (found.verdict, found.finding) == (FAIL, "no answer within 1 s")


def test_a_switch_that_is_neither_0_nor_1_is_the_users(doctor, installation):
    done = doctor("--only", "torch", PYTORCH_LAUNCH_KEEP_PATHS="false", **installation())
    assert "PYTORCH_LAUNCH_KEEP_PATHS=false is neither 0 nor 1" in done.stdout and "bug" not in done.stdout

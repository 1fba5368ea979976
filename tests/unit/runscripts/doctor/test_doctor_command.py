"""The doctor's command: options, exit status, closed streams, the table and JSON."""

import json
import shutil
from pathlib import Path

import pytest
from programs import program
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN, Finding
from pytorch_doctor.doctor import as_json, as_table


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


def test_it_works_through_the_link_in_the_modules_bin_with_a_python_that_is_not_the_modules(
    installation, doctor, runscripts
):
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
    ("script", "status", "message"),
    [
        ('"$0" --only slurm >/dev/full', 1, "cannot write to standard output: No space left on device. Check its disk"),
        ('"$0" --only slurm | true; exit ${PIPESTATUS[0]}', 1, ""),
        (
            *('ulimit -n 6; "$0" --only home,slurm,caches', 1),
            "cannot start the checks: Too many open files. Raise the limits of this shell (ulimit -a)",
        ),
    ],
)
def test_output_that_is_not_read_a_full_disk_and_limits_are_no_traceback(doctor, script, status, message):
    done = doctor(script=script)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == (f"pytorch-doctor: {message}\n" if message else "")


def test_a_value_that_is_no_text_is_printed_as_it_is(doctor):
    done = doctor(script="""EBROOTPYTORCH=$'/x\\xff' "$0" --only module | od -An -c""")
    assert "E B R O O T P Y T O R C H = / x 377" in " ".join(done.stdout.split()), done.stderr


# What is printed

FINE, BROKEN = Finding(OK, "fine", "", "one"), Finding(FAIL, "broken", "mend it", "five")


def test_a_table_has_a_line_for_each_check_and_each_remedy_and_the_sum():
    findings = [FINE, Finding(WARN, "odd", "look", "three"), BROKEN]
    assert as_table("n1", findings).splitlines() == [
        "check  verdict  finding",
        "one    ok       fine",
        "three  warn     odd",
        "                -> look",
        "five   FAIL     broken",
        "                -> mend it",
        "n1: 1 ok, 1 warn, 1 FAIL",
    ]


def test_faults_alone_name_the_node_in_every_line():
    findings = [FINE, BROKEN]
    lines = as_table("n1", findings, faults_only=True).splitlines()
    assert lines == ["n1: 1 ok, 1 FAIL", "n1: five   FAIL     broken", "n1:                 -> mend it"]
    assert as_table("n1", findings[:1], faults_only=True) == "n1: 1 ok\n"


def test_json_has_the_worst_verdict():
    nothing = Finding(NOT_APPLICABLE, "nothing", "", "one")
    assert json.loads(as_json("n1", [nothing]))["verdict"] == OK
    assert json.loads(as_json("n1", [nothing, Finding(WARN, "", "", "two")]))["verdict"] == WARN

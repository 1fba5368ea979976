"""The doctor: its command, table and deadline, and the checks of module, image, torch, caches, home and data set."""

import ctypes.util
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN, Finding, fail, ok, surroundings
from pytorch_doctor.checks import caches, dataset, home, image, module
from pytorch_doctor.checks import torch as torch_check
from pytorch_doctor.deadline import run_all
from pytorch_doctor.doctor import parse
from pytorch_doctor.probe import PROBE
from pytorch_doctor.report import as_json, as_table
from pytorch_doctor.surroundings import Surroundings, last_line, recipe

from testbed.processes import is_running

RECIPE = """easyblock = 'EB_PyTorchVenv'
name = 'PyTorch'
version = '2.13.0'
toolchain = SYSTEM
gpu = {gpu!r}
"""


@pytest.fixture
def installation(tmp_path):
    """A function that makes the directory of a module, and returns the variables that it sets."""

    def make(easyblock="EB_PyTorchVenv", gpu=None):
        root = tmp_path / "PyTorch"
        for part in ("runscripts", "payload", "bin", "easybuild", "provenance"):
            (root / part).mkdir(parents=True)
        text = RECIPE.format(gpu=gpu).replace("EB_PyTorchVenv", easyblock)
        (root / "easybuild" / "PyTorch-2.13.0.eb").write_text(text)
        return {
            "EBROOTPYTORCH": str(root),
            "CONTAINERROOT": str(root),
            "RUNSCRIPTS": str(root / "runscripts"),
            "PAYLOAD": str(root / "payload"),
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "LOADEDMODULES": "cluster/lumi:PyTorch/2.13.0-cpu",
        }

    return make


@pytest.fixture
def python(installation):
    """A function that makes a module whose Python answers with the given facts about torch, or fails."""

    def make(facts=None, error="", **changes):
        env = installation("EB_PyTorchContainer")
        known = {
            "python": "/usr/bin/python3", "version": "2.13.0+cpu", "directory": "/opt/torch", "cuda": None, "hip": None,
            "in_image": True, "total": 8.0, "devices": [], "fault": None, "plugin": None, "foreign": [],
        }  # fmt: skip
        answer = json.dumps({**known, **facts}) if facts is not None else ""
        program = Path(env["EBROOTPYTORCH"], "bin", "conda-python-simple")
        program.write_text(
            f"#!/bin/sh\necho noise\ncat <<'E'\n{answer}\nE\necho '{error}' >&2\nexit {int(facts is None)}\n"
        )
        program.chmod(0o755)
        return Surroundings({**env, **changes})

    return make


# The command


@pytest.fixture
def doctor(runscripts, tmp_path):
    """Run the command with nothing in its environment but what is given."""

    def run(*arguments, **env):
        return subprocess.run(
            [runscripts / "pytorch-doctor", *arguments],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **env},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def test_without_a_module_it_reports_what_to_load_and_fails(doctor):
    done = doctor()
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["check", "verdict", "finding"]
    assert lines[1].split()[:2] == ["module", "FAIL"]
    assert "-> module load PyTorch/<version>" in lines[2]
    assert done.stderr == ""


def test_checks_that_pass_are_success(doctor):
    done = doctor("--only", "home,caches", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["verdict"] == OK
    assert [row["check"] for row in found["checks"]] == ["caches", "home"]


@pytest.mark.parametrize(
    "arguments", [("--only", "homes"), ("--timeout", "0"), ("--timeout", "9" * 12), ("--nothing",)]
)
def test_an_option_that_makes_no_sense_is_refused(doctor, arguments):
    done = doctor(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: pytorch-doctor" in done.stderr


def test_the_first_task_of_a_node_speaks_for_it(doctor):
    done = doctor(SLURM_STEP_ID="0", SLURM_LOCALID="1")
    assert (done.returncode, done.stdout) == (0, "")


def test_it_takes_another_python_than_the_modules_which_may_be_broken(installation, doctor):
    env = installation()
    broken = Path(env["EBROOTPYTORCH"], "bin", "python3")
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    done = doctor("--only", "home", **env)
    assert done.returncode == 0, done.stderr


def test_it_works_through_the_link_in_the_modules_bin(installation, doctor, runscripts):
    env = installation()
    root = Path(env["EBROOTPYTORCH"])
    shutil.rmtree(root / "runscripts")
    shutil.copytree(runscripts, root / "runscripts")
    (root / "bin" / "pytorch-doctor").symlink_to("../runscripts/pytorch-doctor")
    done = subprocess.run(["pytorch-doctor", "--only", "module"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "PyTorch/2.13.0-cpu (venv), profile lumi" in done.stdout


@pytest.mark.parametrize(
    ("redirected", "message"),
    [
        (">&-", "cannot write to standard output: Bad file descriptor"),
        (">/dev/full", "cannot write to standard output: No space left on device"),
        ("<&- >&- 2>&-", ""),
        ("<&-", ""),
        ("| true", ""),
    ],
)
def test_standard_streams_that_are_closed_or_full_are_no_traceback(runscripts, redirected, message):
    command = f'"$0" --only slurm {redirected}; [ ${{PIPESTATUS[0]}} = {int(redirected != "<&-")} ]'
    done = subprocess.run(
        ["bash", "-c", command, runscripts / "pytorch-doctor"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == bool(message)
    assert message in done.stderr


def test_limits_that_leave_no_process_to_a_check_are_named(runscripts):
    done = subprocess.run(
        ["bash", "-c", 'ulimit -n 6; "$0" --only home,slurm,caches', runscripts / "pytorch-doctor"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    sentence = "cannot start the checks: Too many open files. Raise the limits of this shell (ulimit -a)"
    assert done.stderr == f"pytorch-doctor: {sentence}\n"


def test_a_value_that_is_no_text_is_printed_as_it_is(runscripts):
    done = subprocess.run(
        [runscripts / "pytorch-doctor", "--only", "module"],
        env={b"PATH": b"/usr/bin:/bin", b"EBROOTPYTORCH": b"/x\xff", b"PYTHONIOENCODING": b"utf-8"},
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert b"EBROOTPYTORCH=/x\xff\n" in done.stdout, done.stderr


# What is printed


def test_a_table_has_a_line_for_each_check_and_each_remedy_and_the_sum():
    findings = [ok("one", "fine"), Finding("three", WARN, "odd", "look"), fail("five", "broken", "mend it")]
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
    findings = [ok("one", "fine"), fail("five", "broken", "mend it")]
    lines = as_table("n1", findings, faults_only=True).splitlines()
    assert lines == ["n1: 1 ok, 1 FAIL", "n1: five   FAIL     broken", "n1:                 -> mend it"]
    assert as_table("n1", findings[:1], faults_only=True) == "n1: 1 ok\n"


def test_json_has_the_worst_verdict():
    nothing = Finding("one", NOT_APPLICABLE, "nothing", "")
    assert json.loads(as_json("n1", [nothing]))["verdict"] == OK
    assert json.loads(as_json("n1", [nothing, Finding("two", WARN, "", "")]))["verdict"] == WARN


# The deadline


def test_a_check_that_hangs_is_a_failure_and_the_others_have_their_say():
    def hang(_):
        subprocess.run(["sleep", "1000"], check=False)

    start = time.monotonic()
    groups = [[("first", lambda _: ok("first", "fine")), ("stuck", hang), ("after", hang)], [("other", hang)]]
    findings = run_all(groups, None, 1)
    assert time.monotonic() - start < 100
    assert [(finding.check, finding.verdict) for finding in findings] == [
        ("first", OK), ("stuck", FAIL), ("after", FAIL), ("other", FAIL),
    ]  # fmt: skip
    assert "no answer within 1 s" in findings[1].finding


def test_what_a_check_did_not_foresee_is_its_failure():
    def surprise(_):
        raise ValueError("odd")

    def closed(_):
        Path("/nonexistent/file").read_text()

    groups = [
        [("one", surprise), ("two", closed), ("three", lambda _: ok("three", "fine"))],
        [("four", lambda _: os._exit(0))],
    ]
    one, two, three, four = run_all(groups, None, 60)
    assert (one.verdict, one.finding) == (FAIL, "ValueError: odd")
    assert two.finding == "/nonexistent/file: No such file or directory"
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
doctor.GROUPS = ((("home", hang),), (("caches", hang),))
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
    assert process.communicate(timeout=60) == ("", "")
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
    started = [int(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert process.returncode == 143
    assert not [pid for pid in started if is_running(pid)]


def test_a_recipe_that_cannot_be_read_holds_up_nothing(installation, doctor):
    """Neither a FIFO, nor a file system that never answers, which each check meets within its deadline."""
    env = installation()
    recipe_file = Path(env["EBROOTPYTORCH"], "easybuild", "PyTorch-2.13.0.eb")
    recipe_file.unlink()
    os.mkfifo(recipe_file)
    done = doctor("--timeout", "5", "--only", "module", **env)
    assert done.returncode == 0, done.stdout
    assert "(venv)" in done.stdout


def test_the_installation_is_read_by_checks_alone(monkeypatch):
    monkeypatch.setattr(surroundings, "recipe", lambda _: time.sleep(1000))
    here = Surroundings({"EBROOTPYTORCH": "/nonexistent"})
    (found,) = run_all([[("image", image.check)]], here, 1)
    assert (found.verdict, found.finding) == (FAIL, "no answer within 1 s")


def test_the_default_deadline_gives_time_to_several_gpus_and_is_named_in_the_help(capsys):
    assert parse([]).timeout == 180
    with pytest.raises(SystemExit):
        parse(["--help"])
    assert "for all checks, which run in parallel; 30 times as many with --full (default: 180)" in " ".join(
        capsys.readouterr().out.split()
    )


# The module


def test_the_values_of_a_recipe_are_read_without_running_it(installation):
    env = installation(gpu="rocm")
    name, values = recipe(Path(env["EBROOTPYTORCH"]))
    assert name == "PyTorch-2.13.0.eb"
    assert (values["version"], values["gpu"]) == ("2.13.0", "rocm")
    assert "toolchain" not in values
    assert recipe(Path("/nonexistent")) == (None, {})


def test_a_module_whose_directory_is_gone_is_a_failure(installation):
    env = {**installation(), "EBROOTPYTORCH": "/nonexistent"}
    assert module.check(Surroundings(env)).verdict == FAIL


@pytest.mark.parametrize(
    ("containers", "name"),
    [
        (("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"), "APPTAINER_BIND"),
        (("SINGULARITY_CONTAINER",), "SINGULARITY_BIND"),
    ],
)
def test_a_directory_that_the_image_does_not_see_is_bound_by_the_variable_of_its_runtime(containers, name):
    env = {**dict.fromkeys(containers, "x.sif"), "EBROOTPYTORCH": "/none", "MNIST_ROOT": "/none"}
    for check in (module.check, dataset.check):
        assert f"visible in the image: see {name}" in check(Surroundings(env)).remedy


def test_a_variable_that_leads_nowhere_is_named(installation):
    found = module.check(Surroundings({**installation(), "PAYLOAD": "/nonexistent"}))
    assert found.verdict == FAIL
    assert "PAYLOAD=/nonexistent" in found.finding
    assert "unset" in found.remedy


def test_a_python_before_the_modules_is_a_warning(installation, tmp_path):
    env = installation()
    for directory in (tmp_path, Path(env["EBROOTPYTORCH"], "bin")):
        (directory / "python").write_text("#!/bin/sh\n")
        (directory / "python").chmod(0o755)
    assert module.check(Surroundings(env)).verdict == OK
    found = module.check(Surroundings({**env, "PATH": f"{tmp_path}:{env['PATH']}"}))
    assert found.verdict == WARN
    assert f"{tmp_path}/python" in found.finding


def test_a_module_without_its_profile_is_a_warning(installation):
    found = module.check(Surroundings({**installation(), "LOADEDMODULES": "PyTorch/2.13.0-cpu"}))
    assert found.verdict == WARN
    assert "cluster profile" in found.finding


# The image


@pytest.fixture
def sif(installation, tmp_path):
    """A module with an image, and a singularity that runs anything; the environment and the image's path."""
    env = installation("EB_PyTorchContainer")
    path = Path(env["EBROOTPYTORCH"], "PyTorch.sif")
    path.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + bytes(range(256)))
    note = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    Path(env["EBROOTPYTORCH"], "provenance", "image.json").write_text(json.dumps(note))
    runtime = tmp_path / "singularity"
    runtime.write_text("#!/bin/sh\n[ ! -e ${0%/*}/broken ] || { echo 'FATAL: no such format' >&2; exit 255; }\n")
    runtime.chmod(0o755)
    return {**env, "SIFPYTORCH": str(path), "PATH": f"{tmp_path}:/bin"}, path


def test_an_image_as_it_was_installed_is_fine(sif):
    env, _ = sif
    assert image.check(Surroundings(env)).verdict == OK
    assert "SHA-256 as installed" in image.check(Surroundings(env, full=True)).finding


def test_an_image_that_is_gone_cut_or_no_image_is_a_failure(sif):
    env, path = sif
    content = path.read_bytes()
    for damaged, message in ((content[:-1], " bytes, expected "), (b"nothing" * 50, "is not an image in SIF format")):
        path.write_bytes(damaged)
        found = image.check(Surroundings(env))
        assert found.verdict == FAIL
        assert message in found.finding
    path.unlink()
    found = image.check(Surroundings(env))
    assert found.verdict == FAIL
    assert "eb --rebuild PyTorch-2.13.0.eb" in found.remedy


def test_a_changed_byte_is_found_when_all_is_read(sif):
    env, path = sif
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert image.check(Surroundings(env)).verdict == OK
    found = image.check(Surroundings(env, full=True))
    assert found.verdict == FAIL
    assert "SHA-256" in found.finding


@pytest.mark.parametrize(
    ("output", "message", "remedy"),
    [
        (
            "INFO:    gocryptfs not found\nFATAL:   container creation failed: squashfuse_ll exited: "
            "fuse: failed to open /dev/fuse: Permission denied",
            "failed to open /dev/fuse: Permission denied",
            "chmod 0666 /dev/fuse",
        ),
        ("FATAL:   fuse: device not found, try 'modprobe fuse' first", "device not found", "modprobe fuse; chmod"),
        (
            "\033[91mERROR  : Failed to create user namespace: not allowed\n\033[0mINFO   :   apptainer-suid",
            "does not start: ERROR  : Failed to create user namespace: not allowed",
            "user namespaces, which this machine denies",
        ),
    ],
)
def test_a_node_that_denies_containers_is_named_and_no_installation(sif, python, tmp_path, output, message, remedy):
    (tmp_path / "singularity").write_text(f"#!/bin/sh\nprintf '%b\\n' \"{output}\" >&2; exit 255\n")
    found = image.check(Surroundings(sif[0]))
    assert found.verdict == FAIL
    assert message in found.finding
    assert remedy in found.remedy
    assert "eb" not in found.remedy.split()


def test_an_image_that_does_not_start_is_a_failure_with_the_runtimes_words(sif, tmp_path):
    env, _ = sif
    (tmp_path / "broken").touch()
    found = image.check(Surroundings(env))
    assert found.verdict == FAIL
    assert "FATAL: no such format" in found.finding
    assert image.check(Surroundings({**env, "PATH": "/nonexistent"})).remedy == "load the site's module of Apptainer"


def test_in_the_image_a_file_that_is_not_bound_is_nothing_to_check(sif):
    env, path = sif
    path.unlink()
    assert image.check(Surroundings({**env, "APPTAINER_CONTAINER": "x"})).verdict == NOT_APPLICABLE


def test_an_image_at_shifters_gateway_is_started_there(installation, tmp_path):
    env = {**installation("EB_PyTorchShifter"), "SHIFTER_IMAGE": "site/image:1", "PATH": str(tmp_path)}
    assert image.check(Surroundings(env)).verdict == FAIL
    (tmp_path / "shifter").write_text('#!/bin/sh\n[ "$*" = "--image=site/image:1 true" ]\n')
    (tmp_path / "shifter").chmod(0o755)
    assert image.check(Surroundings(env)).verdict == OK


# torch


def test_the_modules_torch_is_fine(python):
    found = torch_check.check(python({}))
    assert (found.verdict, found.finding) == (OK, "2.13.0+cpu, for CPUs")


@pytest.mark.parametrize(
    ("facts", "verdict", "message"),
    [
        ({"in_image": False, "directory": "/home/u/torch"}, FAIL, "not the module's"),
        ({"directory": "/user-software/venv/torch"}, WARN, "your own, in user-software, hides the module's 2.13.0"),
        ({"version": "2.12.0"}, FAIL, "the module is for 2.13.0"),
        ({"foreign": ["/opt/other/libc10.so"]}, FAIL, "/opt/other/libc10.so of another torch"),
        ({"total": 7.0}, FAIL, "eight ones"),
        ({"cuda": "13.0"}, OK, "for CUDA 13.0"),
        ({"hip": "6.4.43482"}, OK, "for ROCm 6.4"),
    ],
)
def test_another_torch_is_told_from_the_modules(python, facts, verdict, message):
    found = torch_check.check(python(facts))
    assert found.verdict == verdict
    assert message in found.finding


@pytest.mark.parametrize(
    ("recorded", "facts", "verdict", "message", "remedy"),
    [
        (
            "2.13.0+cpu",
            {"version": "2.14.0+cu130", "directory": "/home/u/.local/easybuild/PyTorch/lib/torch"},
            WARN,
            "torch 2.14.0+cu130 from /home/u/.local/easybuild/PyTorch/lib/torch: "
            "your own, in PYTHONUSERBASE, hides the module's 2.13.0+cpu",
            "pip uninstall torch",
        ),
        # uninstalled from a venv that its user may write to
        ("2.13.0+cpu", {"version": "2.13.0+cu130"}, WARN, "the module is for 2.13.0+cpu", "eb --rebuild PyTorch-2."),
        ("2.13.0", {"version": "2.13.0+cu130"}, OK, "2.13.0+cu130", ""),  # so the index's own wheels
        ("2.6.0a0+ecf3bae.nv25.1", {"version": "2.6.0a0+ecf3bae.nv25.01"}, OK, "nv25.01", ""),
        ("2.10.0", {"version": "2.10.0a0+git1"}, OK, "2.10.0a0+git1", ""),  # so images whose recipe alone is known
        ("2.10.0", {"version": "2.1.0"}, FAIL, "the module is for 2.10.0", "eb --rebuild"),
    ],
)
def test_a_torch_in_place_of_the_installed_one_is_named_with_both_versions(
    python, recorded, facts, verdict, message, remedy
):
    here = python(facts, PYTHONUSERBASE="/home/u/.local/easybuild/PyTorch")
    (here.module / "constraints.txt").write_text(f"numpy==2.0\ntorch=={recorded}\ntorchgen==1\n")
    found = torch_check.check(here)
    assert found.verdict == verdict
    assert message in found.finding
    assert remedy in found.remedy


def test_a_torch_that_a_node_denies_is_no_matter_of_the_installation(python):
    found = torch_check.check(python(None, error="FATAL: fuse: failed to open /dev/fuse: Permission denied"))
    assert found.remedy.startswith("Containers need /dev/fuse; ask an administrator")


def test_a_torch_that_cannot_be_imported_is_a_failure_that_names_what_leads_to_another(python, tmp_path):
    (tmp_path / "torch").mkdir()
    found = torch_check.check(python(None, error="ImportError: libx", PYTHONPATH=str(tmp_path)))
    assert found.verdict == FAIL
    assert "ImportError: libx" in found.finding
    assert found.remedy.startswith("unset PYTHONPATH; ")


def test_the_venvs_own_python_is_asked_with_its_environment_active(installation, tmp_path, runscripts):
    env = installation()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('a stand-in')")
    found = torch_check.check(
        Surroundings(
            {
                **env, "WITH_CONDA": f"export PYTHONPATH={tmp_path}", "WITH_VENV": "true",
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            }
        )
    )  # fmt: skip
    assert found.finding.endswith("ImportError: a stand-in")


STAND_IN = """
import mmap, os, sys
from types import SimpleNamespace as Some

here = os.path.dirname(__file__)
setting = {setting}
__version__ = "2.13.0"
version = Some(cuda=setting.get("cuda"), hip=setting.get("hip"))
sys.prefix = os.path.join(os.path.dirname(here), "conda")
mapped = [mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ) for path in setting.get("mapped", [])]
os.stat = lambda path: Some(st_dev=setting.get("mounts", {{}}).get(path, setting.get("mounts", {{}}).get("image", 1)))


def ones(count, device="cpu"):
    if device in setting.get("broken", {{}}):
        raise RuntimeError(setting["broken"][device])
    total = 7.0 if device == setting.get("wrong") else 8.0
    return Some(sum=lambda: Some(item=lambda: total))


cuda = Some(device_count=lambda: setting.get("gpus", 0), get_device_name=lambda index: "GPU %d" % index)
"""


@pytest.fixture
def probe(tmp_path):
    """A function that asks a stand-in of torch what the doctor asks torch."""

    def ask(env=None, **setting):
        (tmp_path / "torch").mkdir(exist_ok=True)
        (tmp_path / "torch" / "__init__.py").write_text(STAND_IN.format(setting=setting))
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env={"PYTHONPATH": str(tmp_path), **(env or {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_torch_is_in_the_image_where_the_root_directory_is_made_in_memory(probe, tmp_path):
    assert probe(mounts={"/": 1, "image": 2})["in_image"]
    assert not probe(mounts={"/": 1, "image": 2, str(tmp_path / "torch"): 3})["in_image"]


def test_libraries_in_condas_own_directory_are_not_of_another_torch(probe, tmp_path):
    places = ("torch/lib", "conda/lib", "conda/lib/python3/site-packages/torch/lib", "other")
    paths = [str(tmp_path / place / "libtorch_cpu.so") for place in places]
    for path in map(Path, paths):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    assert probe(mapped=paths)["foreign"] == paths[2:]


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ({"gpus": 2}, None),
        ({"gpus": 2, "broken": {"cuda:1": "CUDA error: x\nmore"}}, "cuda:1: CUDA error: x"),
        ({"gpus": 2, "broken": {"cuda:1": ""}}, "cuda:1: RuntimeError"),
        ({"gpus": 3, "wrong": "cuda:2"}, "cuda:2: eight ones add up to 7.0"),
        ({"gpus": 0, "broken": {"cuda": "the driver is too old"}}, "the driver is too old"),
    ],
)
def test_every_gpu_computes_and_the_one_that_does_not_is_named(probe, setting, fault):
    facts = probe(cuda="13.0", **setting)
    assert facts["fault"] == fault
    assert facts["devices"] == [f"GPU {index}" for index in range(setting["gpus"])]


@pytest.mark.parametrize(
    ("version", "env", "files", "plugin"),
    [
        ("cuda", {}, ["nccl-net.so"], "libnccl-net.so"),
        ("cuda", {}, ["rccl-net.so", "nccl-net-ofi.so"], None),
        ("hip", {}, ["rccl-net.so"], "librccl-net.so"),
        ("hip", {}, ["nccl-net.so"], "libnccl-net.so"),
        ("cuda", {"NCCL_NET_PLUGIN": "ofi"}, ["nccl-net-ofi.so"], "libnccl-net-ofi.so"),
        ("cuda", {"NCCL_NET_PLUGIN": "ofi"}, ["nccl-net.so"], None),
        ("cuda", {"NCCL_NET_PLUGIN": "none"}, ["nccl-net.so"], None),
    ],
)
def test_nccls_plugin_is_looked_for_by_the_names_that_nccl_takes(probe, tmp_path, version, env, files, plugin):
    (library,) = Path(ctypes.util.__file__).parents[1].glob("lib-dynload/_ctypes.*.so")
    for name in files:
        shutil.copy(library, tmp_path / f"lib{name}")
    facts = probe({"LD_LIBRARY_PATH": str(tmp_path), **env}, gpus=1, **{version: "7.0"})
    assert facts["plugin"] == plugin


def test_the_last_line_of_an_error_is_what_people_read():
    assert last_line("Traceback\n  x\nImportError: why\n\n") == "ImportError: why"
    assert last_line("") == "no output"


# Caches, home, data set


def test_a_private_directory_is_fine_and_nothing_is_written(tmp_path):
    assert caches.check(Surroundings({"TMPDIR": str(tmp_path)})).verdict == OK
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_open_to_others_is_a_warning(tmp_path):
    top = tmp_path / f"pytorch-{os.geteuid()}"
    top.mkdir()
    top.chmod(0o777)
    found = caches.check(Surroundings({"TMPDIR": str(tmp_path)}))
    assert found.verdict == WARN
    assert f"{top} is not private" in found.finding
    top.rmdir()
    top.symlink_to(tmp_path)
    assert caches.check(Surroundings({"TMPDIR": str(tmp_path)})).verdict == WARN


def test_no_directory_at_all_is_a_failure(tmp_path):
    found = caches.check(Surroundings({"TMPDIR": "/nonexistent"}, root=str(tmp_path / "nowhere")))
    assert found.verdict == FAIL
    assert "TMPDIR" in found.remedy


def test_a_home_directory_with_room_is_fine_and_one_that_is_gone_a_warning(tmp_path):
    env = {"HOME": str(tmp_path), "PYTHONUSERBASE": str(tmp_path / "not" / "yet")}
    assert home.check(Surroundings(env)).verdict == OK
    assert home.check(Surroundings({"HOME": "/nonexistent"})).verdict == WARN


@pytest.mark.parametrize(("number", "verdict"), [(28, FAIL), (122, FAIL), (30, WARN)])
def test_a_full_home_directory_fails_and_a_read_only_one_does_not(tmp_path, monkeypatch, number, verdict):
    monkeypatch.setattr(home, "why_not_writable", lambda _: os.strerror(number))
    assert home.check(Surroundings({"HOME": str(tmp_path)})).verdict == verdict


@pytest.fixture
def four_files(tmp_path, monkeypatch):
    """A data set of four small files, whose checksums the check expects."""
    contents = {name: name.encode() for name in dataset.FILES}
    monkeypatch.setattr(dataset, "FILES", {name: hashlib.sha256(text).hexdigest() for name, text in contents.items()})
    for name, text in contents.items():
        (tmp_path / name).write_bytes(text)
    return tmp_path


def test_a_data_set_is_checked_where_it_is(four_files):
    assert dataset.check(Surroundings({})).verdict == NOT_APPLICABLE
    assert dataset.check(Surroundings({"MNIST_ROOT": str(four_files)})).verdict == OK


def test_a_missing_a_changed_and_a_cut_file_are_failures(four_files):
    here = Surroundings({"MNIST_ROOT": str(four_files)})
    labels = four_files / "t10k-labels-idx1-ubyte"
    labels.write_bytes(b"other")
    assert "t10k-labels-idx1-ubyte is damaged" in dataset.check(here).finding
    labels.rename(four_files / "t10k-labels-idx1-ubyte.gz")
    found = dataset.check(here)
    assert found.verdict == FAIL
    assert "t10k-labels-idx1-ubyte.gz cannot be read" in found.finding
    (four_files / "t10k-labels-idx1-ubyte.gz").unlink()
    found = dataset.check(here)
    assert "has no t10k-labels-idx1-ubyte" in found.finding
    assert "eb --rebuild MNIST-1998.eb" in found.remedy

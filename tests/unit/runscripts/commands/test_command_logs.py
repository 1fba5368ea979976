"""PYTORCH_LAUNCH_LOG_DIR: the output of each rank in a file of its own, and how Python ended."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command_environment import PATH

BOTH = "import sys; print('to stdout'); print('to stderr', file=sys.stderr); "


@pytest.fixture
def rank(run_unchecked, step, home):
    """A function that runs code as one of four ranks on two nodes, with its log below `home`/logs."""

    def run(code, number=3, **env):
        task = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number % 2), "SLURM_NODEID": str(number // 2)}
        env = {**step, **task, "PYTORCH_LAUNCH_LOG_DIR": str(home / "logs"), **env}
        return run_unchecked("conda-python-distributed", "-c", code, env=env)

    return run


def text_of(home, number=3, launch="7.0", start=""):
    return (home / "logs" / launch / f"rank-{number:05d}{start}.log").read_text()


def output_of(text):
    return [line for line in text.splitlines() if not line.startswith("pytorch-launch: ")]


def test_the_output_of_a_rank_is_in_its_log_alone_in_order(rank, home):
    done = rank(BOTH)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    text = text_of(home)
    assert output_of(text) == ["to stdout", "to stderr"]
    assert text.startswith("pytorch-launch: start rank=3 size=4 local_rank=1 node=nid001003 ")
    assert "\npytorch-launch: end rank=3 status=0 time=20" in text


def test_rank_0_has_the_terminal_as_well_in_two_streams(rank, home):
    done = rank(BOTH + "print('no end of line', end='')", number=0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "to stdout\nno end of line", "to stderr\n")
    assert sorted(output_of(text_of(home, 0))) == ["no end of line", "to stderr", "to stdout"]


def test_a_log_belongs_to_its_user_alone_and_is_never_overwritten(rank, home):
    for word in ("first", "second"):
        rank(f"print('{word}')")
    assert output_of(text_of(home)) == ["first"]
    assert output_of(text_of(home, start=".1")) == ["second"]
    for path in [home / "logs", *(home / "logs").rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_requeued_job_and_a_process_outside_a_job_have_directories_of_their_own(rank, run_unchecked, home):
    rank("", SLURM_RESTART_COUNT="2")
    run_unchecked("conda-python-distributed", "-c", "", env={"PYTORCH_LAUNCH_LOG_DIR": "logs"})
    names = sorted(os.listdir(home / "logs"))
    assert names[0] == "7.0-restart2"
    assert names[1].startswith(f"local.{os.uname().nodename}.")


def test_workers_of_torchrun_have_the_directory_of_their_run(run_unchecked, worker, home):
    env = {**worker, "TORCHELASTIC_RUN_ID": "../7.0 x", "PYTORCH_LAUNCH_LOG_DIR": str(home)}
    assert run_unchecked("conda-python-distributed", "-c", "", env=env).returncode == 0
    assert (home / "_7.0_x" / "rank-00000.log").exists()


def test_the_first_rank_that_fails_prints_its_last_lines_and_the_others_nothing(rank, home):
    done = rank("print('before'); raise ValueError('bad')")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == (
        "conda-python-distributed: rank 3 on nid001003 exited with status 1, the first that failed. "
        f"Its last lines: {home}/logs/7.0/rank-00003.log"
    )
    assert lines[1:3] == ["    before", "    Traceback (most recent call last):"]
    assert lines[-2:] == [
        "    ValueError: bad",
        f"conda-python-distributed: to compare all ranks, run: pytorch-doctor --job {home}/logs/7.0",
    ]
    assert os.readlink(home / "logs/7.0/first-failed.log") == "rank-00003.log"
    second = rank("raise SystemExit(5)", number=2)
    assert (second.returncode, second.stderr) == (5, "")


def test_a_rank_that_lost_another_lets_that_one_report_first(rank, running, patient, home):
    lost = "import os, sys; print(os.getpid()); print('[rank3]: RuntimeError: Connection closed by peer [::1]:9')"
    process, log = running(f"{lost}; print('ready'); sys.exit(1)", commands=patient)
    ended = f"import os, time\nwhile os.path.exists('/proc/{output_of(log.read_text())[0]}'): time.sleep(0.01)"
    done = rank(f"{ended}\ntime.sleep(0.3)\nraise ValueError('bad')", number=2)
    assert done.stderr.startswith("conda-python-distributed: rank 2 on nid001003")
    assert process.wait(300) == 1
    assert process.stderr.read() == ""
    assert os.readlink(home / "logs/7.0/first-failed.log") == "rank-00002.log"


@pytest.mark.parametrize("number", [0, 3])
def test_a_signal_that_kills_python_kills_the_command_and_is_recorded(rank, home, number):
    done = rank("import os; print('last', flush=True); os.kill(os.getpid(), 9)", number)
    assert done.returncode == -signal.SIGKILL
    assert f"\npytorch-launch: end rank={number} signal=SIGKILL time=" in text_of(home, number)
    assert "was killed by SIGKILL, the first that failed" in done.stderr


@pytest.fixture
def running(runscripts, step, home):
    """A function that starts Python as a rank with a log, once it prints `ready`; what it started is ended."""
    started = []

    def start(code, number=3, commands=runscripts):
        task = {"SLURM_PROCID": str(number), "SLURM_LOCALID": str(number % 2), "SLURM_NODEID": str(number // 2)}
        env = {**step, **task, "PATH": PATH, "TMPDIR": str(home), "PYTORCH_LAUNCH_LOG_DIR": str(home / "logs")}
        command = [commands / "conda-python-distributed", "-c", f"{code}; print('ready'); time.sleep(600)"]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        log = home / "logs" / "7.0" / f"rank-{number:05d}.log"
        deadline = time.monotonic() + 300
        while not (log.exists() and "ready\n" in log.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return started[-1], log

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def patient(runscripts, tmp_path):
    """The commands, with a longer wait for the report of another rank, which a busy machine starts slowly."""
    commands = tmp_path / "patient" / "runscripts"
    shutil.copytree(runscripts, commands, ignore=shutil.ignore_patterns("__pycache__"))
    launch = commands / "pytorch_launch" / "launch.py"
    usual = launch.read_text()
    launch.write_text(usual.replace("\nREPORT_GRACE_SECONDS = 5\n", "\nREPORT_GRACE_SECONDS = 300\n"))
    assert launch.read_text() != usual
    return commands


HANDLER = "import signal, sys, time; signal.signal(signal.SIG{0}, lambda *_: sys.exit(75))"


@pytest.mark.parametrize("number", [0, 3])
def test_python_receives_signals_and_its_status_is_that_of_the_command(running, number):
    process, log = running(HANDLER.format("TERM"), number)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 75
    assert f"end rank={number} status=75 after=SIGTERM time=" in log.read_text()
    assert process.stderr.read() == ""  # it was ended, and did not fail


def test_a_rank_that_a_signal_from_outside_kills_did_not_fail(running, home):
    process, log = running("import time")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == -signal.SIGTERM
    assert "end rank=3 signal=SIGTERM after=SIGTERM time=" in log.read_text()
    assert not (home / "logs/7.0/first-failed.log").exists()


def test_python_does_not_outlive_its_launcher(running):
    process, log = running("import os, time; print(os.getpid())")
    python = int(output_of(log.read_text())[0])
    process.kill()
    process.wait(300)
    deadline = time.monotonic() + 300
    while Path(f"/proc/{python}/stat").exists() and " Z " not in Path(f"/proc/{python}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("missing/logs", "cannot write to {}/missing/logs: No such file or directory. Create the directory that"),
        ("file", "cannot write to {}/file: not a directory. Name a directory of your own"),
        ("/proc/1", "cannot write to /proc/1"),
    ],
)
def test_a_directory_that_cannot_be_written_is_an_error_before_python_starts(rank, home, place, fault):
    (home / "file").write_text("")
    done = rank("print('started')", number=0, PYTORCH_LAUNCH_LOG_DIR=place)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("conda-python-distributed: PYTORCH_LAUNCH_LOG_DIR: " + fault.format(home))
    assert done.stderr.count("\n") == 1


def test_a_directory_of_the_launch_that_others_can_write_to_is_not_used(rank, home):
    (home / "logs" / "7.0").mkdir(parents=True)
    (home / "logs" / "7.0").chmod(0o777)
    done = rank("print('started')", number=0)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot write to {home}/logs/7.0: other users can write to it." in done.stderr


def test_a_dry_run_and_the_line_of_a_rank_have_its_log_and_nothing_is_written(run_unchecked, step, home):
    env = {**step, "PYTORCH_LAUNCH_LOG_DIR": "logs", "PYTORCH_LAUNCH_VERBOSE": "1"}
    done = run_unchecked("conda-python-distributed", "--dry-run", env=env)
    assert f"\nPYTORCH_LAUNCH_LOG={home}/logs/7.0/rank-00003.log\n" in done.stdout
    assert "\nPYTHONUNBUFFERED=1\n" in done.stdout
    assert f"; log {home}/logs/7.0/rank-00003.log; " in done.stderr
    assert not (home / "logs").exists()


def test_an_empty_variable_changes_nothing(rank, home):
    done = rank(BOTH, PYTORCH_LAUNCH_LOG_DIR="")
    assert (done.stdout, done.stderr) == ("to stdout\n", "to stderr\n")
    assert list(home.iterdir()) == []

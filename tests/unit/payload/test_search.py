"""What the search makes of its command line and of its trials; tests/integration searches for real."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import search
from testbed.processes import is_running


def arguments(*more):
    return search.parse_arguments(["--study", "study", "--trials", "12", *more])


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("lr=log:0.001..0.1", {"low": 0.001, "high": 0.1, "log": True, "choices": ()}),
        ("lr=1e-4..1e-1", {"low": 0.0001, "high": 0.1, "log": False, "choices": ()}),
        ("warmup=0..2", {"low": 0, "high": 2, "log": False, "choices": ()}),
        ("shift=-2..2.5", {"low": -2, "high": 2.5, "log": False, "choices": ()}),
        ("batch-size=64,128", {"choices": (64, 128)}),
        ("optimizer=adam,sgd", {"choices": ("adam", "sgd")}),
    ],
)
def test_a_hyper_parameter_is_a_range_or_a_list(text, meaning):
    parameter = search.parse_parameter(text)
    assert parameter.name == text.partition("=")[0]
    for name, value in meaning.items():
        assert getattr(parameter, name) == value
        assert type(getattr(parameter, name)) is type(value)


@pytest.mark.parametrize("text", ["lr", "lr=", "=1..2", "lr=2..1", "lr=log:0..1", "lr=a..b", "lr=1..1"])
def test_what_is_no_hyper_parameter_is_refused_in_one_line(text, capsys):
    with pytest.raises(SystemExit) as end:
        arguments("--space", text)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert repr(text) in line


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--trials", "0"], "--trials must be above 0, found 0"),
        (["--takeover", "0"], "--takeover must be above 0, found 0"),
        (["--", "absent.py"], "there is no script absent.py"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_one_line(wrong, words, capsys):
    with pytest.raises(SystemExit) as end:
        arguments(*wrong)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_the_example_training_is_searched_unless_a_script_is_named(payload):
    assert arguments().command == [str(payload / "mnist_ddp.py")]
    assert arguments("--", "--epochs", "1").command == [str(payload / "mnist_ddp.py"), "--epochs", "1"]
    assert arguments("--", __file__, "-x").command == [__file__, "-x"]
    assert [parameter.name for parameter in arguments().space] == ["lr", "batch-size"]


def test_a_trial_is_the_script_with_its_options_a_directory_and_the_parameters(tmp_path):
    command = search.trial_command(["train.py", "--epochs", "1"], tmp_path, {"lr": 0.01, "batch-size": 64})
    assert command == [
        sys.executable, "-u", "train.py", "--epochs", "1", "--modelpath", str(tmp_path),
        "--lr", "0.01", "--batch-size", "64",
    ]  # fmt: skip


def test_a_training_does_not_outlive_a_search_that_is_killed(payload, tmp_path):
    code = """import os, signal, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from search import Search
search = Search.__new__(Search)
search.child, search.stopped, search.options = None, False, SimpleNamespace(takeover=60)
def kill():
    while not search.child:
        time.sleep(0.05)
    print(search.child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
search.wait_for(["sleep", "600"], Path(sys.argv[1]))
"""
    environment = {**os.environ, "PYTHONPATH": str(payload)}
    command = [sys.executable, "-c", code, tmp_path]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    deadline = time.monotonic() + 10
    while is_running(int(killed.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_trial_counts_by_the_metric_of_its_last_epoch(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert search.last_value(path, "accuracy") is None
    path.write_text("".join(json.dumps({"epoch": n, "accuracy": 90 + n, "loss": None}) + "\n" for n in (1, 2)))
    assert search.last_value(path, "accuracy") == 92
    assert search.last_value(path, "loss") is None
    assert search.last_value(path, "absent") is None


def test_the_table_has_its_columns_one_below_the_other():
    rows = [["", "accuracy", "lr"], ["1", search.shorten(98.0), search.shorten(0.0123456)]]
    assert search.table(rows) == "   accuracy       lr\n1     98.00  0.01235"


def test_a_journal_that_a_full_disk_cut_short_loses_no_more_than_that_line(tmp_path):
    locked = []
    lock = SimpleNamespace(acquire=lambda: locked.append(True), release=lambda: locked.append(False))
    journal = tmp_path / "study.journal"
    search.mend_journal(journal, lock)
    assert not journal.exists()
    journal.write_text('{"op_code": 0}\n{"op_code": 4}\n{"op_co')
    search.mend_journal(journal, lock)
    search.mend_journal(journal, lock)
    assert journal.read_text() == '{"op_code": 0}\n{"op_code": 4}\n'
    assert locked == [True, False, True, False]


@pytest.mark.parametrize("minimize", [False, True])
def test_the_picture_has_a_panel_for_the_trials_and_for_each_parameter(tmp_path, minimize):
    def trial(number, value):
        params = {"lr": 0.001 * (number + 1), "batch-size": 64, "warmup": number}
        return SimpleNamespace(number=number, value=value, params=params)

    spaces = ["lr=log:0.001..0.1", "batch-size=64,128", "warmup=0..9"]
    options = arguments(*(word for space in spaces for word in ("--space", space)))
    options.minimize = minimize
    values = [98.0, 97.5, 97.0, 96.0, 10.0]  # the last went astray
    trials = [trial(number, -value if minimize else value) for number, value in enumerate(values)]
    assert search.draw_search(trials, options, tmp_path / "search.png")
    content = (tmp_path / "search.png").read_bytes()
    assert struct.unpack(">II", content[16:24]) == (1920, 432)


def test_a_search_of_one_trial_has_a_picture_too(tmp_path):
    trial = SimpleNamespace(number=0, value=98.0, params={"lr": 0.01, "batch-size": 64})
    assert search.draw_search([trial], arguments(), tmp_path / "search.png")


def test_a_rank_of_several_is_told_to_start_another_way(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit) as end:
        search.main(arguments())
    assert "start it as steps of one task" in end.value.code
    assert "\n" not in end.value.code


def test_without_optuna_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(search, "NO_OPTUNA", "No module named 'optuna'")
    with pytest.raises(SystemExit) as end:
        search.main(arguments())
    assert end.value.code == "search.py: needs Optuna 4 or newer (No module named 'optuna'): pip install optuna"

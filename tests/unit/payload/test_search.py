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
from training import TrainingError
from training.search import journal, picture, signs_of_life
from training.search.space import parse_parameter
from training.search.trial import last_value, trial_command

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
    parameter = parse_parameter(text)
    assert parameter.name == text.partition("=")[0]
    for name, value in meaning.items():
        assert getattr(parameter, name) == value
        assert type(getattr(parameter, name)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "lr", "lr=", "=1..2", "lr=2..1", "lr=log:0..1", "lr=a..b", "lr=1..1",
        "lr=0..1e400", "lr=nan..1", "lr=0..99999999999999999999", "lr=-1e308..1e308",
    ],
)  # fmt: skip
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
        (["--", "absent.py"], "absent.py: no such script"),
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
    command = trial_command(["train.py", "--epochs", "1"], tmp_path, {"lr": 0.01, "batch-size": 64})
    assert command == [
        sys.executable, "-u", "train.py", "--epochs", "1", "--modelpath", str(tmp_path),
        "--lr", "0.01", "--batch-size", "64",
    ]  # fmt: skip


def test_a_training_does_not_outlive_a_search_that_is_killed(payload, tmp_path):
    code = """import os, signal, sys, threading, time
from pathlib import Path
from training.search.trial import TrialProcess
search = TrialProcess()
def kill():
    while not search.child:
        time.sleep(0.05)
    print(search.child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=kill).start()
search.run(["sleep", "600"], Path(sys.argv[1]) / "log", 10, lambda: None)
"""
    environment = {**os.environ, "PYTHONPATH": str(payload)}
    command = [sys.executable, "-c", code, tmp_path]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    deadline = time.monotonic() + 60
    while is_running(int(killed.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_trial_counts_by_the_metric_of_its_last_epoch(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(TrainingError, match="^no accuracy in metrics.jsonl$"):
        last_value(path, "accuracy")
    path.write_text("".join(json.dumps({"epoch": n, "accuracy": 90 + n, "loss": None}) + "\n" for n in (1, 2)))
    assert last_value(path, "accuracy") == 92
    with pytest.raises(TrainingError, match="^no absent in metrics.jsonl$"):
        last_value(path, "absent")


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"98"', "null", "true", "1" + 4000 * "0", "[98]", "1e400"])
def test_a_metric_that_is_no_finite_number_is_one_sentence(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"epoch": 1, "accuracy": {value}}}\n')
    with pytest.raises(TrainingError, match="^accuracy in metrics.jsonl is .{1,40}, not a finite number$"):
        last_value(path, "accuracy")


def test_a_live_trial_is_not_taken_over_where_the_clock_jumps_forward(tmp_path, monkeypatch):
    one = signs_of_life.SignsOfLife(tmp_path, 120)
    (tmp_path / "trial-0000").mkdir()
    alive = tmp_path / "trial-0000" / "alive"
    alive.touch()
    now, monotonic = alive.stat().st_mtime, [50.0]
    monkeypatch.setattr(signs_of_life.time, "monotonic", lambda: monotonic[0])
    assert not one.is_silent("trial-0000", now)
    assert not one.is_silent("trial-0000", now + 3600), "the clock jumped"
    monotonic[0] += 20
    os.utime(alive, (now + 3600, now + 3600))  # a sign of life
    assert not one.is_silent("trial-0000", now + 3620)
    assert not one.is_silent("trial-0000", now + 7200)
    monotonic[0] += 29
    assert not one.is_silent("trial-0000", now + 7229)
    monotonic[0] += 2
    assert one.is_silent("trial-0000", now + 7231), "three signs of life were due"


def test_the_table_has_its_columns_one_below_the_other():
    rows = [["", "accuracy", "lr"], ["1", picture.shorten(98.0), picture.shorten(0.0123456)]]
    assert picture.table(rows) == "   accuracy       lr\n1     98.00  0.01235"


def test_a_journal_that_a_full_disk_cut_short_loses_no_more_than_that_line(tmp_path):
    locked = []
    lock = SimpleNamespace(acquire=lambda: locked.append(True), release=lambda: locked.append(False))
    path = tmp_path / "study.journal"
    journal.mend_journal(path, lock)
    assert not path.exists()
    path.write_text('{"op_code": 0}\n{"op_code": 4}\n{"op_co')
    journal.mend_journal(path, lock)
    journal.mend_journal(path, lock)
    assert path.read_text() == '{"op_code": 0}\n{"op_code": 4}\n'
    assert locked == [True, False, True, False]


@pytest.mark.parametrize("damage", ["{damaged", "[]", '{"op_co": 0}', "1", "", "[" * 100000])
def test_a_journal_that_is_damaged_before_its_end_is_one_sentence_and_stays(tmp_path, damage):
    lock = SimpleNamespace(acquire=lambda: None, release=lambda: None)
    path = tmp_path / "study.journal"
    content = f'{{"op_code": 0}}\n{damage}\n{{"op_code": 4}}\n{{"op'
    path.write_text(content)
    with pytest.raises(TrainingError, match=rf"^{path}: damaged \(line 2\). Nothing was changed: restore the file"):
        journal.mend_journal(path, lock)
    assert path.read_text() == content


def drawn(trials, options, monkeypatch):
    """The axes of the picture of a search."""
    figures = []
    monkeypatch.setattr(picture, "write_picture", lambda _, draw, **__: draw(figures[0]))
    figures.append(pytest.importorskip("matplotlib.figure").Figure(layout="constrained"))
    picture.draw_search(trials, options, None)
    return figures[0]


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ([98.6, 98.2, 97.9, 95, 91.2, 88, 80, 70, 57, 40.5, 14.33, 9.8], []),
        ([98, 97, 96.5, 96, 10], [10]),
        ([0.1, 0.2, 0.3, 0.35, 9], [9]),
        ([98, 98], []),
    ],
)
def test_a_value_on_the_axis_stands_where_it_is_and_the_legend_reports_what_is_beyond(monkeypatch, values, beyond):
    options = arguments("--space", "lr=log:0.001..0.1")
    options.minimize = values[0] < values[-1]
    trials = [SimpleNamespace(number=n, value=v, params={"lr": 0.01 + 0.001 * n}) for n, v in enumerate(values)]
    figure = drawn(trials, options, monkeypatch)
    for panel in figure.axes:
        lines = {line.get_label(): line for line in panel.lines}
        low, high = panel.get_ylim()
        assert sorted(lines["trial"].get_ydata()) == sorted({*values} - {*beyond} if beyond else values)
        assert [value for value in values if not low <= value <= high] == beyond
        assert ("trial, beyond the scale" in lines) == bool(beyond)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["best so far", "trial", *["trial, beyond the scale"][: len(beyond)], "best trial"]


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
    assert picture.draw_search(trials, options, tmp_path / "search.png")
    content = (tmp_path / "search.png").read_bytes()
    assert struct.unpack(">II", content[16:24]) == (1920, 432)


def test_a_search_of_one_trial_has_a_picture_too(tmp_path):
    trial = SimpleNamespace(number=0, value=98.0, params={"lr": 0.01, "batch-size": 64})
    assert picture.draw_search([trial], arguments(), tmp_path / "search.png")


def test_a_rank_of_several_is_told_to_start_another_way(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit) as end:
        search.main(arguments())
    assert "Start it as steps of one task" in end.value.code
    assert "\n" not in end.value.code


def test_without_optuna_one_sentence_reports_how_to_get_it(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(search, "NO_OPTUNA", "No module named 'optuna'")
    with pytest.raises(SystemExit) as end:
        search.main(arguments())
    assert end.value.code == "search.py: needs Optuna 4 or newer (No module named 'optuna'). Run: pip install optuna"


START = """
import os, signal
import search
from training.signals import end_at_once
end_at_once()
search.NO_OPTUNA = None
class Search:
    def __init__(self, options):
        try:
            os.kill(os.getpid(), {number})
            signal.pause()
        finally:
            print("lock released", flush=True)
search.Search = Search
search.main(search.parse_arguments(["--study", "study", "--trials", "1"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_signal_at_the_start_of_a_search_leaves_no_lock_behind(payload, number, status):
    environment = {**os.environ, "PYTHONPATH": str(payload)}
    environment.pop("WORLD_SIZE", None)
    command = [sys.executable, "-c", START.format(number=number.value)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout) == (status, "lock released\n"), ended.stderr
    assert ended.stderr == f"search.py: {number.name}: stopped, nothing was started\n"

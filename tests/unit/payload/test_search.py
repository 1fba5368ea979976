"""What the search makes of its command line and of its trials; tests/integration searches for real."""

import json
import os
import re
import signal
import sys
from unittest.mock import MagicMock

import pytest
import search
from launching import PAYLOAD, Ranks, start_python
from search import is_running, last_value, lock_trial, remove_incomplete_line, start_training
from training import TrainingError


def arguments(*more):
    return search.parse_arguments(["--study", "study", "--trials", "12", *more])


def test_a_hyper_parameter_is_a_range_or_a_list():
    for text, meaning in {  # low, high, log, choices
        "lr=log:0.001..0.1": "(0.001, 0.1, True, ())",
        "lr=1e-4..1e-1": "(0.0001, 0.1, False, ())",
        "warmup=0..2": "(0, 2, False, ())",
        "shift=-2..2.5": "(-2, 2.5, False, ())",
        "batch-size=64,128": "(0, 0, False, (64, 128))",
        "optimizer=adam,sgd": "(0, 0, False, ('adam', 'sgd'))",
    }.items():
        parameter = search.parse_parameter(text)
        assert (parameter.name, repr(parameter[2:])) == (text.partition("=")[0], meaning)


#: Values of --space that are none.
NO_SPACE = "lr lr= =1..2 lr=2..1 lr=log:0..1 lr=a..b lr=1..1 lr=0..1e400 lr=nan..1 lr=0..99999999999999999999"
NO_SPACE += " lr=-1e308..1e308 lr=nan,0.1 lr=0.1,0.2,0.1 lr=1,1.0 lr=0.1,,0.2"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        *((["--space", text], repr(text)) for text in NO_SPACE.split()),
        (["--", "absent.py"], "absent.py: no such script"),
        (["--study", ""], "--study: is empty"),
        (["--metric", ""], "--metric: is empty"),
        (["--space", "lr=0..1", "--space", "lr=2..3"], "--space: lr is given 2 times"),
        (["--space", "modelpath=a,b"], "--modelpath: each trial has a directory of its own"),
        (["--", __file__, "--modelpath", "x"], "--modelpath: each trial has a directory of its own"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_one_line(wrong, words, capsys):
    with pytest.raises(SystemExit) as end:
        arguments(*wrong)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_the_example_training_is_searched_unless_a_script_is_named():
    assert arguments().command == [str(PAYLOAD / "mnist_ddp.py")]
    assert arguments("--", "--epochs", "1").command == [str(PAYLOAD / "mnist_ddp.py"), "--epochs", "1"]
    assert arguments("--", __file__, "-x").command == [__file__, "-x"]
    assert [parameter.name for parameter in arguments().space] == ["lr", "batch-size"]


def test_a_trial_is_the_script_with_its_options_a_directory_and_the_parameters(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; print(sys.argv[1:])")
    with lock_trial(tmp_path) as lock:
        training = start_training([str(script), "--epochs", "1"], tmp_path, {"lr": -1e-9, "batch-size": 64}, lock)
        assert training.wait() == 0
    expected = ["--epochs", "1", "--modelpath", str(tmp_path), "--lr=-1e-09", "--batch-size=64"]
    assert (tmp_path / "log").read_text() == f"{expected}\n"


def test_a_trial_runs_as_long_as_its_process_or_the_training_has_not_ended(tmp_path):
    assert not is_running(tmp_path / "absent"), "its directory was removed"
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "lock")
    with pytest.raises(OSError, match="No such device"):
        lock_trial(tmp_path / "fifo")
    assert not is_running(tmp_path), "of an earlier release, which had no lock"
    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    lock = lock_trial(tmp_path)
    assert is_running(tmp_path)
    training = start_training([str(tmp_path / "train.py")], tmp_path, {}, lock)
    lock.close()
    assert is_running(tmp_path), "the training writes its last checkpoint"
    training.kill()
    training.wait()
    assert not is_running(tmp_path)


def test_a_trial_counts_by_the_metric_of_its_last_epoch_if_it_is_a_finite_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(TrainingError, match="^no accuracy in metrics.jsonl$"):
        last_value(path, "accuracy")
    path.write_text("".join(json.dumps({"epoch": n, "accuracy": 90 + n, "loss": None}) + "\n" for n in (1, 2)))
    assert last_value(path, "accuracy") == 92
    with pytest.raises(TrainingError, match="^no absent in metrics.jsonl$"):
        last_value(path, "absent")
    for value in ("NaN", "-Infinity", '"98"', "null", "true", "1" + 4000 * "0", "[98]", "1e400"):
        path.write_text(f'{{"epoch": 1, "accuracy": {value}}}\n')
        with pytest.raises(TrainingError, match="^accuracy in metrics.jsonl is not a finite number: .{1,40}$"):
            last_value(path, "accuracy")


def test_a_journal_that_a_full_disk_cut_short_loses_no_more_than_that_line_and_reports_it(tmp_path, capsys):
    path = tmp_path / "study.journal"
    remove_incomplete_line(path)
    assert not path.exists()
    path.write_text('{"op_code": 0}\n{"op_code": 4}\n{"op_co')
    remove_incomplete_line(path)
    assert capsys.readouterr().out == f"{path}: removed an incomplete last line\n"
    remove_incomplete_line(path)
    assert path.read_text() == '{"op_code": 0}\n{"op_code": 4}\n'
    assert capsys.readouterr().out == ""


def test_a_link_to_a_file_of_another_program_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_text("precious")
    for name in ("study.journal", "log"):
        (tmp_path / name).symlink_to(other)
    with pytest.raises(TrainingError, match="a symbolic link, which is not followed"):
        remove_incomplete_line(tmp_path / "study.journal")
    with lock_trial(tmp_path) as lock, pytest.raises(OSError, match="Too many levels of symbolic links"):
        start_training([__file__], tmp_path, {}, lock)
    assert other.read_text() == "precious"


@pytest.mark.parametrize("error", [KeyError("op_code"), RecursionError("maximum recursion depth exceeded")])
def test_a_journal_that_optuna_cannot_read_is_one_sentence(tmp_path, monkeypatch, error):
    for name in ("", ".storages", ".storages.journal", ".trial"):
        monkeypatch.setitem(sys.modules, f"optuna{name}", MagicMock())
    sys.modules["optuna"].create_study.side_effect = error
    message = rf"^{tmp_path}/study.journal: damaged \({type(error).__name__}: .*\). Restore the file, or choose"
    with pytest.raises(TrainingError, match=message):
        search.Search(arguments("--study", str(tmp_path))).run()


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("4", "this is one of 4 ranks .*. Start it as steps of one task, .*"),
        ("1", r"needs Optuna 4 or newer \(.*\). Run: pip install optuna"),
    ],
)
def test_ranks_of_one_world_and_an_absent_optuna_are_one_sentence(monkeypatch, size, words):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(SystemExit) as end:
        search.main(arguments())
    assert re.fullmatch(f"search.py: {words}", end.value.code)


START = """
import os, sys
from unittest.mock import MagicMock
for name in ("", ".distributions", ".storages", ".storages.journal", ".trial"):
    sys.modules["optuna" + name] = MagicMock()
sys.modules["optuna"].create_study.return_value.user_attrs = {{}}
lock = sys.modules["optuna.storages.journal"].JournalFileOpenLock.return_value
lock.acquire.side_effect = lambda: os.kill(os.getpid(), {number})
lock.release.side_effect = lambda: print("lock released", flush=True)
import search
search.end_at_once()
search.main(search.parse_arguments(["--study", "study", "--trials", "1"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_at_the_start_of_a_search_leaves_no_lock_behind(tmp_path, number, status):
    code, environment = START.format(number=number.value), {"PYTHONPATH": str(PAYLOAD)}
    (rank,) = Ranks(("-c", code), [environment], cwd=tmp_path, start=start_python).wait()
    assert rank == (status, 2 * "lock released\n", "")

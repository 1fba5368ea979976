"""What the search makes of its command line and of its trials; tests/integration searches for real."""

import fcntl
import json
import subprocess
import sys
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest
from launching import PAYLOAD


class Distribution(NamedTuple):
    """What replaces a class of Optuna: it keeps what it is made of."""

    kind: str
    values: Any
    log: bool = False


def distribution(kind):
    return lambda *values, log=False: Distribution(kind, values, log)


@pytest.fixture
def search(monkeypatch):
    """The module, with a stand-in for Optuna, which is not in the environment of the unit tests."""
    for name in ("", ".distributions", ".storages", ".storages.journal", ".trial"):
        monkeypatch.setitem(sys.modules, f"optuna{name}", MagicMock())
    for kind in ("Categorical", "Float", "Int"):
        setattr(sys.modules["optuna.distributions"], f"{kind}Distribution", distribution(kind))
    monkeypatch.delitem(sys.modules, "search", raising=False)
    import search

    yield search
    sys.modules.pop("search", None)


#: Texts of --space, and what Optuna gets.
PARAMETERS = {
    "lr=log:0.001..0.1": Distribution("Float", (0.001, 0.1), True),
    "lr=1e-4..1e-1": Distribution("Float", (0.0001, 0.1)),
    "warmup=0..2": Distribution("Int", (0, 2)),
    "shift=-2..2.5": Distribution("Float", (-2, 2.5)),
    "batch-size=64,128": Distribution("Categorical", ([64, 128],)),
    "optimizer=adam,sgd": Distribution("Categorical", (["adam", "sgd"],)),
}


@pytest.mark.parametrize(("text", "expected"), PARAMETERS.items(), ids=PARAMETERS)
def test_a_hyper_parameter_is_a_range_or_a_list(search, text, expected):
    assert search.parameter(text) == (text.partition("=")[0], expected)


@pytest.mark.parametrize("wrong", [["--space", "lr=1..2..3"], ["--study", ""], ["--trials", "0"], []])
def test_an_option_that_makes_no_sense_is_refused_in_one_line(search, wrong, capsys):
    with pytest.raises(SystemExit) as end:
        search.parse_arguments(["--study", "study", "--trials", "12", *wrong, "--", "train.py"])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_training_gets_its_directory_and_its_hyper_parameters(search, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    with search.lock_trial(tmp_path / "trial-0000") as lock:
        command = [str(tmp_path / "train.py"), "--epochs", "1"]
        search.start_training(command, tmp_path / "trial-0000", {"lr": -1e-9, "batch-size": 64}, lock).wait()
    written = (tmp_path / "trial-0000" / "log").read_text()
    assert written == f"{['--epochs', '1', f'--modelpath={tmp_path}/trial-0000', '--lr=-1e-09', '--batch-size=64']}\n"


def test_a_trial_is_running_while_its_search_or_its_training_runs(search, tmp_path):
    def is_running():
        try:
            search.lock_trial(tmp_path, fcntl.LOCK_NB).close()
        except BlockingIOError:
            return True
        return False

    (tmp_path / "train.py").write_text("import time; time.sleep(600)")
    lock = search.lock_trial(tmp_path)
    assert is_running()
    training = search.start_training([str(tmp_path / "train.py")], tmp_path, {}, lock)
    lock.close()
    assert is_running(), "the training writes its last checkpoint"
    training.kill()
    training.wait()
    assert not is_running()


#: Last lines of metrics.jsonl, and the accuracy that counts.
LINES = {
    '{"epoch": 1, "accuracy": 92}': 92,
    '{"epoch": 1, "accuracy": 0}': 0,
    '{"epoch": 1, "accuracy": null}': None,
    '{"epoch": 1, "loss": 1}': None,
    '{"epoch"': None,
    "": None,
}


@pytest.mark.parametrize(("line", "value"), LINES.items(), ids=LINES)
def test_a_trial_counts_by_the_metric_of_its_last_epoch(search, tmp_path, line, value):
    assert search.last_value(tmp_path, "accuracy") is None
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps({'epoch': 0, 'accuracy': 50})}\n{line}\n")
    assert search.last_value(tmp_path, "accuracy") == value


LINE = ["--study", "study", "--trials", "2", "--space", "lr=1..2", "--", "train.py"]


@pytest.mark.parametrize(("option", "printed"), [([], "trial-0000  accuracy 98  {'lr': 1}\n" * 2), (["--one"], "")])
def test_where_all_trials_are_done_a_process_reports_unless_it_was_for_one_trial(
    search, tmp_path, monkeypatch, capsys, option, printed
):
    """A job that is submitted again starts as many steps for one trial as before: one table, not one for each."""
    done = MagicMock(value=98.0, params={"lr": 1}, user_attrs={search.DIRECTORY: "trial-0000"})
    study = MagicMock()
    study.get_trials = lambda states, **_: [done, done] if search.TrialState.COMPLETE in states else []
    monkeypatch.setattr(search.Search, "open_study", lambda _: study)
    monkeypatch.chdir(tmp_path)
    search.Search(search.parse_arguments([*option, *LINE])).run()
    assert capsys.readouterr().out == printed


def test_ranks_of_one_world_and_a_damaged_journal_are_one_sentence(search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SystemExit, match=r"^search.py: one of several ranks, .*\. Use conda-python-simple$"):
        search.main(LINE)
    monkeypatch.setenv("WORLD_SIZE", "1")
    search.optuna.get_all_study_names.side_effect = KeyError("op_code")
    with pytest.raises(SystemExit, match=r"^search.py: study/study.journal: damaged \(KeyError.*\)\. Restore it, or"):
        search.main(LINE)


def test_another_question_to_the_same_study_is_one_sentence(search, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search.optuna.get_all_study_names.return_value = ["other.py, maximize accuracy"]
    with pytest.raises(SystemExit, match=r"^search.py: study/study.journal: of .*other.py.*not of 'train.py, maximize"):
        search.main(LINE)


def test_without_optuna_the_search_reports_how_to_get_it(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ImportError('absent')")
    done = subprocess.run(
        [sys.executable, PAYLOAD / "search.py", "--help"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "search.py: needs Optuna 4 or newer (absent). Run: pip install optuna\n"

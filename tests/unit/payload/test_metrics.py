"""What each epoch reached: the lines of metrics.jsonl over interruptions, and the programs that show them."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from training import TrainingError
from training.metrics import Metrics, read_epochs

VALUES = {"loss": 0.25, "accuracy": 97.5, "images_per_second": 13000.0, "seconds": 4.5, "world_size": 4}


def write_record(directory, epochs, *, first_epoch=0, **values):
    with Metrics(directory, options={"lr": 0.01}, first_epoch=first_epoch) as log:
        for epoch in epochs:
            log.epoch(epoch, **{**VALUES, **values})


def numbers(directory):
    return [line["epoch"] for line in read_epochs(directory / "metrics.jsonl")]


@pytest.mark.parametrize(("first_epoch", "again", "expected"), [(2, [3, 4], [1, 2, 3, 4]), (0, [1], [1])])
def test_a_training_that_resumes_or_begins_anew_repeats_no_epoch(tmp_path, first_epoch, again, expected):
    write_record(tmp_path, [1, 2, 3])
    write_record(tmp_path, again, first_epoch=first_epoch)
    assert numbers(tmp_path) == expected


@pytest.mark.parametrize("damage", [b'{"epoch": null}\n', b"\xff\0\n", b"1\n", b'{"epoch": 3, "loss": 0.1'])
def test_a_line_that_is_damaged_costs_that_line_alone(tmp_path, damage):
    write_record(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + damage)
    assert numbers(tmp_path) == [1, 2]
    write_record(tmp_path, [3], first_epoch=2)
    assert numbers(tmp_path) == [1, 2, 3] and path.read_bytes().count(b"\n") == 3


#: Values that programs have, and what JSON keeps of them.
KEPT = {
    "a number": (3, 3),
    "of NumPy": (np.float32(0.5), 0.5),
    "a mean of NumPy": (np.mean([1.0, 2.0]), 1.5),
    "a tensor": (torch.tensor(0.25), 0.25),
    "NaN": (math.nan, None),
    "infinite": (torch.tensor(math.inf), None),
    "none": (None, None),
    "a text": ("nid001001, GPU 0", "nid001001, GPU 0"),
}


@pytest.mark.parametrize(("value", "kept"), KEPT.values(), ids=KEPT)
def test_any_numbers_under_any_names_are_recorded_and_kept_by_a_training_that_resumes(tmp_path, value, kept):
    for epoch in (1, 2):
        with Metrics(tmp_path, options={}, first_epoch=epoch - 1) as log:
            log.epoch(epoch, mean_absolute_error=value, my_number=7)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"epoch": epoch, "mean_absolute_error": kept, "my_number": 7} for epoch in (1, 2)]


@pytest.mark.parametrize("value", [[1, 2], torch.ones(2), {"loss": 1}, b"1"])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_value_that_is_no_number_is_an_error_at_the_call(tmp_path, value, is_first):
    log = Metrics(tmp_path if is_first else None, options={})
    with pytest.raises(TrainingError, match="^mean_absolute_error: "):
        log.epoch(1, mean_absolute_error=value)


def test_a_record_that_cannot_be_written_ends_the_training_with_one_sentence(tmp_path, limit_files):
    message = "metrics.jsonl: cannot be written .File too large.. The files before it are undamaged: free some space"
    with limit_files(40), pytest.raises(TrainingError, match=message):
        write_record(tmp_path, [1])


@pytest.mark.parametrize(
    ("package", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_tracker_that_is_not_installed_is_one_sentence(tmp_path, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        TrainingError, match=rf"^--{package}: [^\n]*{module}[^\n]* See docs/watching.md, or omit --{package}$"
    ):
        Metrics(tmp_path, options={package: "demo"})


def fail(*_, **__):
    raise RuntimeError("API request to https://me:secret@host/api failed.\nin 3 lines")


def server_of_mlflow(monkeypatch, **calls):
    calls = {"log_params": dict, "start_run": dict, **calls}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**calls))


def test_a_server_that_fails_ends_no_training_and_its_password_is_not_printed(tmp_path, monkeypatch, capsys):
    server_of_mlflow(monkeypatch, log_metrics=fail, end_run=fail)
    with Metrics(tmp_path, options={"mlflow": True}) as log:
        log.epoch(1, **VALUES)
    printed = capsys.readouterr().out
    assert printed.count("--mlflow: API request to https://host/api failed") == 2 and "secret" not in printed

"""What each epoch reached: the lines of metrics.jsonl over interruptions, and the curves."""

import json
import math
import os
import sys
from types import SimpleNamespace

import pytest
from matplotlib.image import imread
from training import TrainingError, metrics
from training.metrics import Metrics, draw_curves, read_epochs
from training.pictures import write_picture

VALUES = {
    "loss": 0.25,
    "accuracy": 97.5,
    "images_per_second": 13000.0,
    "learning_rate": 0.01,
    "seconds": 4.5,
    "world_size": 4,
}


@pytest.fixture
def undrawn(monkeypatch):
    """Leave the picture out: it takes most of the time."""
    monkeypatch.setattr(metrics, "draw_curves", lambda *_: True)


def write_record(directory, epochs, *, first_epoch=0, **values):
    with Metrics(directory, options={"lr": 0.01}, first_epoch=first_epoch) as log:
        for epoch in epochs:
            log.epoch(epoch, **{**VALUES, **values})


def numbers(directory):
    return [line["epoch"] for line in read_epochs(directory / "metrics.jsonl")]


def test_every_epoch_is_one_json_object_with_all_values(tmp_path, undrawn):
    write_record(tmp_path, [1, 2])
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"epoch": 1, **VALUES}, {"epoch": 2, **VALUES}]


@pytest.mark.parametrize(("first_epoch", "again", "expected"), [(2, [3, 4], [1, 2, 3, 4]), (0, [1], [1])])
def test_a_training_that_resumes_or_begins_anew_repeats_no_epoch(tmp_path, undrawn, first_epoch, again, expected):
    write_record(tmp_path, [1, 2, 3])
    write_record(tmp_path, again, first_epoch=first_epoch)
    assert numbers(tmp_path) == expected


DAMAGED = (
    b"{damaged\n",
    b'{"epoch": null}\n',
    b'{"epoch": 1e400}\n',
    b"\xff\0\n",
    b"[" * 100000 + b"\n",
    b"1\n",
    b"\n",
)


@pytest.mark.parametrize(
    ("before", "after"), [*((line, b"") for line in DAMAGED), (b"", b'{"epoch": 3, "loss": 0.1'), (b"", b"{")]
)
def test_a_line_that_is_damaged_or_cut_short_by_a_kill_costs_that_line_alone(tmp_path, undrawn, before, after, capsys):
    write_record(tmp_path, [1, 2])
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(before + path.read_bytes() + after)
    assert numbers(tmp_path) == [1, 2]
    write_record(tmp_path, [3], first_epoch=2)
    assert numbers(tmp_path) == [1, 2, 3] and path.read_bytes().count(b"\n") == 3
    assert (f"{path}: 1 damaged lines are removed\n" in capsys.readouterr().out) == (before != b"\n")


@pytest.mark.parametrize("content", ["my own file\n", "my own file", '{"epoch": 1, "val_loss": 0.5}\n', '{"ep'])
@pytest.mark.parametrize("first_epoch", [0, 2])
def test_a_file_of_another_program_is_left_as_it_is(tmp_path, content, first_epoch):
    path = tmp_path / "metrics.jsonl"
    path.write_text(content)
    with pytest.raises(TrainingError, match=f"^{path}: holds no line of a training: it belongs to another"):
        Metrics(tmp_path, options={}, first_epoch=first_epoch)
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("mine"), "a symbolic link, which is not followed. Remove it$"),
        (lambda path: path.symlink_to("absent"), "a symbolic link, which is not followed. Remove it$"),
        (os.mkfifo, "a FIFO, not a regular file. Remove it"),
    ],
)
def test_a_link_is_not_followed_and_a_fifo_not_waited_for(tmp_path, make, words):
    (tmp_path / "mine").write_text("my own file\n")
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(TrainingError, match=f"^{tmp_path}/metrics.jsonl: {words}"):
        Metrics(tmp_path, options={})
    assert (tmp_path / "mine").read_text() == "my own file\n" and not (tmp_path / "absent").exists()


def test_a_link_that_appears_during_the_training_is_not_followed(tmp_path, undrawn):
    (tmp_path / "mine").write_text("my own file\n")
    with pytest.raises(TrainingError, match="a symbolic link"), Metrics(tmp_path, options={}) as log:
        (tmp_path / "metrics.jsonl").unlink()
        (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "mine")
        log.epoch(1, **VALUES)
    assert (tmp_path / "mine").read_text() == "my own file\n"


def test_a_loss_that_is_no_number_stays_json_and_is_drawn_as_a_gap(tmp_path):
    write_record(tmp_path, [1, 2], loss=math.nan)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    assert [line["loss"] for line in read_epochs(tmp_path / "metrics.jsonl")] == [None, None]
    assert imread(tmp_path / "curves.png").size


def test_the_curves_are_drawn_at_the_end_and_on_resume(tmp_path):
    write_record(tmp_path, [1, 2])
    picture = tmp_path / "curves.png"
    assert imread(picture).shape[:2] == (432, 1440) and picture.read_bytes().endswith(b"IEND\xaeB`\x82")
    picture.unlink()
    with Metrics(tmp_path, options={}, first_epoch=2):
        assert imread(picture).shape[:2] == (432, 1440)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_a_training_that_was_stopped_leaves_at_once(tmp_path):
    with pytest.raises(SystemExit), Metrics(tmp_path, options={}) as log:
        log.epoch(1, **VALUES)
        sys.exit(75)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_no_picture_is_drawn_of_nothing(tmp_path):
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert not any(tmp_path.iterdir())


def test_without_matplotlib_a_line_reports_it_and_the_training_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    write_record(tmp_path, [1])
    capsys.readouterr()
    write_record(tmp_path, [2], first_epoch=1)
    line, _ = capsys.readouterr().out.splitlines()  # it draws at the start and at the end
    assert line.startswith(f"no {tmp_path}/curves.png (")
    assert line.endswith("pip install matplotlib")
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), ValueError("no such font")])
def test_no_fault_of_drawing_ends_a_training_or_leaves_a_part_of_a_picture(tmp_path, fault, capsys):
    write_record(tmp_path, [1])
    before = (tmp_path / "curves.png").read_bytes()

    def write_a_part(file, **_options):
        file.write(b"a part")
        raise fault

    assert not write_picture(tmp_path / "curves.png", lambda figure: setattr(figure, "savefig", write_a_part), width=12)
    assert capsys.readouterr().out == f"no {tmp_path}/curves.png ({fault})\n"
    assert (tmp_path / "curves.png").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_a_record_that_cannot_be_written_ends_the_training_with_one_sentence(tmp_path, undrawn, limit_files):
    message = "metrics.jsonl: cannot be written .File too large.. The files before it are undamaged: free some space"
    with limit_files(40), pytest.raises(TrainingError, match=message):
        write_record(tmp_path, [1])


@pytest.mark.parametrize(
    ("package", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_is_one_sentence_that_explains_how_to_get_it(tmp_path, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrainingError) as fault:
        Metrics(tmp_path, options={package: "demo"})
    assert str(fault.value).startswith(f"--{package} needs a package that is not installed")
    assert str(fault.value).endswith(f"Run: pip install {package}")
    assert "\n" not in str(fault.value)


class ServerError(Exception):
    """In place of one of MLflow's."""


def fail(*_, **__):
    raise ServerError("API request to https://me:secret@host/api failed.\nin 3 lines")


def server_of_mlflow(monkeypatch, **calls):
    run = SimpleNamespace(info=SimpleNamespace(run_id="7"))
    calls = {"set_tracking_uri": str, "log_params": dict, "start_run": lambda **_: run, **calls}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**calls))


def test_a_server_that_fails_ends_no_training_and_its_password_is_not_printed(tmp_path, undrawn, monkeypatch, capsys):
    server_of_mlflow(monkeypatch, log_metrics=fail, end_run=fail)
    with Metrics(tmp_path, options={"mlflow": True}) as log:
        log.epoch(1, **VALUES)
    printed = capsys.readouterr().out
    assert "--mlflow: API request to https://host/api failed: 1 is not recorded there" in printed
    assert "the end is not recorded there" in printed and "secret" not in printed


@pytest.mark.parametrize("name", ["wandb", "mlflow", "mlflow.id", "mlflow.db"])
def test_a_tracker_that_cannot_start_is_one_sentence(tmp_path, monkeypatch, name):
    if name == "mlflow":
        server_of_mlflow(monkeypatch, start_run=fail)
    else:  # a file where W&B needs a directory, a directory where MLflow's database or the id of its run is
        server_of_mlflow(monkeypatch)
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace())
        (tmp_path / name).write_text("") if name == "wandb" else (tmp_path / name).mkdir()
    with pytest.raises(TrainingError, match=r"^--\w+: (?!.*secret)[^\n]+\. (Log in|Check MLFLOW)[^\n]+$"):
        Metrics(tmp_path, options={name.split(".")[0]: "demo"})

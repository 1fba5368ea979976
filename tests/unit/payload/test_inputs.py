"""What users hand to the payload by mistake: numbers, empty variables, texts that are none, directories that vanish."""

import re

import pytest
from launching import run_code, run_ranks
from training.metrics import Metrics


@pytest.mark.slow
def test_a_wrong_command_line_is_reported_by_rank_0_alone():
    ranks = run_ranks(2, "--timeout", "1e13", status=2)
    assert ranks[0].stderr.count("\n") == 1 and ranks[1].stderr == ""


def test_lines_of_a_file_that_is_deleted_during_a_run_are_written_again(tmp_path):
    with Metrics(tmp_path, options={}) as metrics:
        metrics.epoch(1, loss=1.0)
        (tmp_path / "metrics.jsonl").unlink()
        metrics.epoch(2, loss=0.5)
    assert (tmp_path / "metrics.jsonl").read_text().count("epoch") == 2


REMOVED = """
import shutil
import mnist_ddp
from training.health import Health
Health.end_epoch = lambda *_: shutil.rmtree({run!r}, ignore_errors=True) or {{}}
options = mnist_ddp.parse_arguments(["--epochs", "2", "--data", {data!r}, "--modelpath", {run!r}])
mnist_ddp.run_training(mnist_ddp.train, options)
"""


@pytest.mark.slow
def test_a_directory_that_is_deleted_during_a_run_is_one_sentence(small_mnist, tmp_path):
    run = tmp_path / "run"
    ranks = run_code(2, REMOVED.format(run=str(run), data=str(small_mnist)), status=1)
    assert re.fullmatch(rf"rank 0: {run}[^\n]+\n", ranks[0].stderr), ranks[0].stderr
    assert ranks[1].stderr == ""

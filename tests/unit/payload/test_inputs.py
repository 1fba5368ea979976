"""What users hand to the payload by mistake: numbers, empty variables, texts that are none, directories that vanish."""

import re
from pathlib import Path
from unittest.mock import patch

import allreduce_check
import mnist_ddp
import pytest
from launching import run_code, run_ranks
from training import options
from training.language.options import parse_arguments
from training.metrics import Metrics

#: What parses the command line of each program.
PARSES = {
    "mnist_ddp.py": mnist_ddp.parse_arguments,
    "lm_fsdp.py": parse_arguments,
    "allreduce_check.py": allreduce_check.parse_options,
}
WRONG = ("-1", "nan", "inf", "-inf", "1e400", "99999999999999999999", "9" * 5000, "", "x")
#: Options that may be 0.
FROM_ZERO = ("--seed", "--warmup", "--profile-ranks")


@pytest.mark.parametrize("parse", PARSES.values(), ids=PARSES)
def test_a_number_that_makes_no_sense_is_one_line_and_status_2(parse, monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    with patch.object(options.OneLineParser, "parse_args", autospec=True, side_effect=LookupError) as parse_args:
        with pytest.raises(LookupError):
            parse([])
        (parser, *_), _ = parse_args.call_args
    numbers = [action for action in parser._actions if action.type not in (None, options.text, options.path)]
    assert [action for action in numbers if action.type in (int, Path)] == [], "without a limit"
    assert len(numbers) > 2
    for action in numbers:
        option = action.option_strings[0]
        name = getattr(action.type, "__name__", "")
        wrong = WRONG if option != "--threshold" else [value for value in WRONG if value]  # empty: none is expected
        for value in (*wrong, *([] if option in FROM_ZERO else ["0"]), *(["1.5"] if name == "integer" else [])):
            with pytest.raises(SystemExit) as ended:
                parse([f"{option}={value}"])
            output, errors = capsys.readouterr()
            assert (ended.value.code, output) == (2, ""), (option, value[:20])
            assert re.fullmatch(rf"[^\n]+: [^\n]*{option}[^\n]*\. See --help\n", errors), (option, errors[:300])


@pytest.mark.slow
def test_a_wrong_command_line_is_reported_by_rank_0_alone():
    ranks = run_ranks(2, "--timeout", "1e13", status=2)
    assert ranks[0].stderr.count("\n") == 1 and ranks[1].stderr == ""


@pytest.mark.slow
def test_the_longest_and_the_shortest_time_limit_are_ones_that_torch_can_compute_with(small_mnist):
    line = ("--epochs", 1, "--data", small_mnist, "--timeout")
    run_ranks(2, *line, "1e9")
    run_ranks(2, *line, "1e-300", status=1)


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
mnist_ddp.main(mnist_ddp.parse_arguments(["--epochs", "2", "--data", {data!r}, "--modelpath", {run!r}]))
"""


@pytest.mark.slow
def test_a_directory_that_is_deleted_during_a_run_is_one_sentence(small_mnist, tmp_path):
    run = tmp_path / "run"
    ranks = run_code(2, REMOVED.format(run=str(run), data=str(small_mnist)), status=1)
    assert re.fullmatch(rf"rank 0: {run}[^\n]+\n", ranks[0].stderr), ranks[0].stderr
    assert ranks[1].stderr == ""

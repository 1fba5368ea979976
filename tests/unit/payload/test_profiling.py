"""--profile: traces and tables of some ranks."""

import json
import re

import pytest
from launching import run_model, run_ranks

pytestmark = pytest.mark.slow


def check_profile(ranks, directory, expected):
    """Each profiled rank has a table of ten operations, and a trace of five steps."""
    assert ranks[0].stdout.count(f"profile: steps 6 to 10, traces in {directory}\n") == 1
    for number, rank in enumerate(ranks):
        tables = rank.stdout.split(f"profile of rank {number}, 5 steps:\n")[1:]
        assert len(tables) == (number in expected)
        for table in tables:
            assert len(re.findall(r"^ *\S+.* \d+\.\d\d% .* +\d+ +$", table, re.MULTILINE)) == 10
    assert sorted(path.name for path in directory.iterdir()) == [f"trace-rank-{rank}.json" for rank in expected]
    for path in directory.iterdir():
        events = json.loads(path.read_text())["traceEvents"]
        steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
        assert len(steps) == 5


def test_four_ranks_of_which_two_are_profiled(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--batch-size", 16, "--profile", tmp_path / "traces", "--profile-ranks", "0,3")
    check_profile(run_ranks(4, *line), tmp_path / "traces", [0, 3])


def test_a_divided_language_model_is_profiled(text, tmp_path):
    line = ("--size", "100K", "--context", 16, "--data", text, "--steps", 12, "--profile", tmp_path / "to")
    check_profile(run_model(2, *line), tmp_path / "to", [0])


def test_a_rank_that_is_not_there_and_too_few_steps_are_one_sentence(run_alone, small_mnist, tmp_path):
    line = ("--data", small_mnist, "--epochs", 1, "--profile", tmp_path / "traces")
    ranks = run_ranks(2, *line, "--profile-ranks", "0,2", status=1)
    assert ranks[0].stderr == "rank 0: --profile-ranks: there are 2 ranks, from 0. Use these numbers\n"
    assert run_alone(*line).stdout.endswith("no profile of rank 0: 1 steps, 10 are needed\n")

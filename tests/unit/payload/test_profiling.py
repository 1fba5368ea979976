"""--profile: traces of some ranks, and shares of time that add up."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from launching import run_model, run_ranks
from training import TrainingError
from training.profiling import Profile, covered

pytestmark = pytest.mark.slow

SHARES = re.compile(
    r"profile of rank (\d), 5 steps: computing (\S+) %, communication (\S+) %, data (\S+) %, idle (\S+) %"
)


def profile_of(ranks, directory, expected):
    """The shares of each profiled rank; what was printed and written fits."""
    found = {int(rank): list(map(float, shares)) for rank, *shares in SHARES.findall(ranks[0].stdout)}
    assert list(found) == expected and [rank.stdout for rank in ranks[1:]] == [""] * (len(ranks) - 1)
    assert sorted(path.name for path in directory.iterdir()) == [f"trace-rank-{rank}.json" for rank in expected]
    for rank, shares in found.items():
        assert sum(shares) == pytest.approx(100, abs=0.3) and min(shares) >= 0 and shares[0] > 1
        events = json.loads((directory / f"trace-rank-{rank}.json").read_text())["traceEvents"]
        steps = {event["name"] for event in events if event.get("name", "").startswith("ProfilerStep#")}
        assert len(steps) == 5
    assert len(re.findall(r"^ *\S+.* \d+\.\d\d% .* +\d+ +$", ranks[0].stdout, re.MULTILINE)) == 10
    return found


def test_four_ranks_of_which_two_are_profiled(small_mnist, tmp_path):
    line = ("--data", small_mnist, "--batch-size", 16, "--profile", tmp_path / "traces", "--profile-ranks", "0,3")
    found = profile_of(run_ranks(4, *line), tmp_path / "traces", [0, 3])
    assert all(shares[1] > 0 for shares in found.values()), "communication"


def test_a_divided_language_model_is_profiled(text, tmp_path):
    line = ("--size", "100K", "--context", 16, "--data", text, "--steps", 12, "--profile", tmp_path / "to")
    profile_of(run_model(2, *line), tmp_path / "to", [0])


def test_a_rank_that_is_not_there_and_too_few_steps_are_one_sentence(run_alone, small_mnist, tmp_path):
    line = ("--data", small_mnist, "--epochs", 1, "--profile", tmp_path / "traces")
    ranks = run_ranks(2, *line, "--profile-ranks", "0,2", status=1)
    assert ranks[0].stderr == "rank 0: --profile-ranks: no rank 2 among 2. Use 0 and up\n"
    assert run_alone(*line).stdout.endswith("no profile: 1 steps, 10 are needed\n")


def test_a_trace_that_cannot_be_written_ends_all_ranks(small_mnist, tmp_path):
    (tmp_path / "trace-rank-1.json" / "in the way").mkdir(parents=True)
    line = ("--data", small_mnist, "--batch-size", 16, "--profile", tmp_path, "--profile-ranks", 1)
    ranks = run_ranks(2, *line, status=1)
    assert ranks[0].stderr == ""
    assert ranks[1].stderr.endswith("rank-1.json: cannot be written. Check its directory, or use another --profile\n")


def test_a_trace_that_torch_wrote_in_part_is_an_error(alone, tmp_path):
    def export(path):  # torch reports no error of a full disk
        Path(path).write_text('{"traceEvents": [{"ph": "X"}')

    profile = Profile(SimpleNamespace(profile=tmp_path, profile_ranks=[]), alone)
    with pytest.raises(TrainingError, match="rank-0.json: cannot be written"):
        profile.write(MagicMock(export_chrome_trace=export))
    assert not list(tmp_path.iterdir())


def test_spans_that_overlap_count_once():
    assert covered([(5, 7), (0, 2), (1, 3), (6, 6.5), (4, 4), (9, 8)]) == 5

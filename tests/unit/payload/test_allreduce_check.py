"""allreduce_check.py: its options, and complete runs with wrong and missing ranks."""

import re

import allreduce_check as check
import pytest
from allreduce_check import Threshold
from launching import run_code

RUN = """
import allreduce_check as check
{change}
check.main(check.parse_options([{options}]))
"""


def code(*options, change=""):
    return RUN.format(options=", ".join(map(repr, options)), change=change)


def lines_of(rank):
    """The lines of rank 0: the table's rows by size, and the others by what they are about."""
    lines = rank.stdout.splitlines()
    table = {line[:10].strip(): line.split()[-1] for line in lines if re.match(r" +\d+ (B|[KM]iB) ", line)}
    return table, {line.split(":")[0]: line for line in lines}


def test_four_sound_ranks_pass_with_their_rows_and_columns():
    ranks = run_code(4, code("--max-size", "4K", "--threshold", "1e-9@1K", "--groups"))
    assert [rank.stdout for rank in ranks[1:]] == [""] * 3
    table, verdicts = lines_of(ranks[0])
    assert list(table) == ["4 B", "16 B", "64 B", "256 B", "1 KiB", "4 KiB"]
    assert verdicts["sums"] == "sums: right in all 6 sizes on all ranks"
    assert verdicts["bandwidth"] == "bandwidth: at least 1e-09 GB/s at 1 KiB, as expected"
    assert verdicts["groups"] == "groups: 2 rows of 2 ranks, 2 columns of 2: right, and in time"
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: ok"


#: Rank 1 adds wrong numbers.
WRONG = """
def wrong(message, real=dist.all_reduce, **options):
    if message.numel() > 16 and message.any():  # the zeros that are timed stay zeros
        message.view(-1)[-1] += 1
    real(message, **options)

if check.os.environ["RANK"] == "1":
    dist.all_reduce = wrong
"""


def test_wrong_sums_of_large_messages_and_a_missed_threshold_are_reported():
    ranks = run_code(3, code("--max-size", "256", "--threshold", "1e9@256", change=WRONG), status=1)
    table, verdicts = lines_of(ranks[0])
    assert table == {"4 B": "right", "16 B": "right", "64 B": "right", "256 B": "WRONG"}
    named = r"ranks 0 \(\S+\), 1 \(\S+\), 2 \(\S+\)"
    assert re.match(rf"FAIL sums: wrong from 256 B on {named}\. Repeat ", verdicts["FAIL sums"])
    assert verdicts["FAIL bandwidth"].endswith("try other nodes")
    assert ranks[0].stdout.splitlines()[-1] == "all-reduce check: FAIL: sums, bandwidth"


def test_a_fault_is_one_sentence_that_names_the_rank(monkeypatch):
    monkeypatch.setattr(check.os, "environ", {"RANK": "3"})
    with pytest.raises(SystemExit) as ended:
        check.main(check.parse_options([]))
    assert ended.value.code.startswith("rank 3: invalid variables of a rank: RANK=3, WORLD_SIZE not set, ")


def test_options_take_precedence_over_the_profile_and_the_defaults_of_a_quick_check(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLREDUCE_BUSBW", "80.75@128MiB@2x8")
    for line, *expected in (
        ([], 2**24, 120),
        (["--quick"], 2**20, 15),
        (["--quick", "--gpu"], 2**26, 15),
        (["--quick", "--timeout", "7"], 2**20, 7),
    ):
        options = check.parse_options(line)
        assert [options.max_size, options.timeout] == expected
        assert options.threshold == [Threshold(80.75, 2**27, "2x8")]
    assert check.parse_options(["--threshold", "1@4"]).threshold == [Threshold(1, 4, None)]


#: The time limit for answers ends when all ranks but one have answered, and rank 0 stays until they know who has not.
ANSWERS = """
import types
from contextlib import suppress

class Counted(check.Ranks):
    def wait_for(self, what):
        while self.store.add(what, 0) < self.size - 1:
            time.sleep(0.02)

    def missing(self, seconds):
        answers = [0]  # at each reading of the clock: what was polled before the last one may be older
        def monotonic():
            answers.append(sum(self.store.add(f"here {rank}", 0) > 0 for rank in range(self.size)))
            return seconds if answers[-2] == self.size - 1 else 0
        check.time = types.SimpleNamespace(sleep=time.sleep, monotonic=monotonic)
        names = super().missing(seconds)
        with suppress(RuntimeError):
            self.store.add("knows", 1)
        check.time = types.SimpleNamespace(sleep=lambda _: self.wait_for("knows"))
        return names

check.ANSWER_SECONDS = 300
check.Ranks = Counted
"""

HANG = """
def hang(ranks, *_):
    if os.environ["RANK"] == "{rank}":
        with suppress(RuntimeError):  # the store has ended
            ranks.wait_for("knows")
        os._exit(0)
    raise RuntimeError("Timed out waiting for recv operation")  # what gloo raises at the end of --timeout
check.measure_all = hang
"""


END = """
if os.environ["RANK"] == "{rank}":
    check.measure_all = lambda *_: os._exit(9)
"""


@pytest.mark.parametrize(
    ("change", "rank", "name", "fault"),
    [
        pytest.param(HANG, 0, r"0 \(\S+\)", "did not end within 3600 s", marks=pytest.mark.thorough),
        (HANG, 1, r"1 \(\S+\)", "did not end within 3600 s"),
        (END, 0, "0, or the process that holds its store", "failed"),
        (END, 1, r"1 \(\S+\)", "failed"),
    ],
)
def test_a_rank_that_hangs_or_has_ended_is_named_by_the_others_before_the_time_limit(change, rank, name, fault):
    line = ("--max-size", "4", "--timeout", "3600")
    ranks = run_code(3, code(*line, change=ANSWERS + change.format(rank=rank)), status=None)
    for number in {0, 1, 2} - {rank}:
        assert ranks[number].status == 1, ranks
        last = ranks[number].stderr.splitlines()[-1]
        assert re.match(rf"FAIL a collective {fault}: no answer from rank {name} \(", last), ranks


NO_RETURN = """
import types
real = check.Ranks
def ranks_with_gpus(*arguments):
    ranks = real(*arguments)
    ranks.device = types.SimpleNamespace(type="cuda")
    return ranks
def connect(ranks, *_):
    Path({directory!r}, f"connects-{{ranks.rank}}").touch()
    while len(list(Path({directory!r}).glob("connects-*"))) < ranks.size:
        time.sleep(0.01)
    ranks.timeout = 1
    time.sleep(3600)
check.Ranks, check.measure_all = ranks_with_gpus, connect
"""


def test_all_ranks_end_if_the_call_that_connects_their_gpus_never_returns(tmp_path):
    options = ("--max-size", "4", "--timeout", "3600")
    ranks = run_code(2, code(*options, change=NO_RETURN.format(directory=str(tmp_path))), status=1)
    for number, rank in enumerate(ranks):
        assert re.match(
            rf"FAIL rank {number} \(\S+\): a collective of NCCL did not end within 0\.9 s\. ",
            rank.stderr.splitlines()[-1],
        ), ranks


GROUPS = """
def all_gather(*arguments, real=dist.all_gather, **options):
    if os.environ["RANK"] == "2":
        with suppress(RuntimeError):  # the store has ended
            waiting.wait_for("knows")
        os._exit(0)
    if os.environ["RANK"] == "3":
        raise RuntimeError("Timed out waiting for recv operation")  # what gloo raises at the end of --timeout
    return real(*arguments, **options)
class Waiting(check.Ranks):
    def __init__(self, *arguments):
        global waiting
        waiting = self
        super().__init__(*arguments)
check.Ranks, dist.all_gather = Waiting, all_gather
"""


def test_groups_that_do_not_divide_the_ranks_are_one_sentence():
    ranks = run_code(2, code("--max-size", "4", "--groups", "3"), status=1)
    assert "".join(rank.stderr for rank in ranks) == (
        "rank 0: --groups 3: 2 ranks are not a multiple. Use a divisor of the ranks\n"
    )


def test_a_group_that_hangs_is_named_with_its_operation_and_the_rank():
    line = ("--max-size", "4", "--timeout", "25", "--groups")
    ranks = run_code(4, code(*line, change=ANSWERS + GROUPS), status=None)
    assert [ranks[number].status for number in (0, 1, 3)] == [1] * 3, ranks
    group = r"groups: all_gather in row 1 \(ranks 2 \(\S+\), 3 \(\S+\)\)"
    last = ranks[3].stderr.splitlines()[-1]
    assert re.match(rf"FAIL {group}: .*: no answer from rank 2 \(\S+\) \(.*\)\. Look at ", last), ranks
    for number in (0, 1):
        last = ranks[number].stderr.splitlines()[-1]
        assert re.match(r"FAIL a collective .*: no answer from rank 2 \(\S+\) \(", last), ranks


WRONG_GROUP = """
def all_reduce(message, real=dist.all_reduce, **options):
    real(message, **options)
    if options.get("group") and "op" not in options:
        message += 1
dist.all_reduce = all_reduce
"""


def test_a_group_with_a_wrong_result_is_named():
    ranks = run_code(2, code("--max-size", "4", "--groups", change=WRONG_GROUP), status=1)
    assert re.search(r"^FAIL groups: wrong result of all_reduce in row 0 \(ranks .*\)\. Test ", ranks[0].stdout, re.M)

"""Dumps of the flight recorder: read without running them, compared, and written in words.

They are written here in the form of NCCL's (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, version 2.10), with
the states that its events have. `tests/unit/payload/test_dumps_of_torch.py` reads dumps that torch wrote: of ranks of
which one did not start a collective, and without that of a rank.
"""

import os
import pickle

import pytest
from pytorch_launch import LaunchError
from pytorch_stacks.dumps import find_dumps, report_dumps
from stack_frames import DISTRIBUTED


def call(number, name="all_reduce", state="completed", *, group=("0", "default_pg"), line=120, sizes=((4,),), **fields):
    frames = [(name, DISTRIBUTED, 3252), ("train", "/home/u/train.py", line)]
    numbers = {"record_id": number, "pg_id": 0, "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number}
    data = {"input_sizes": [list(size) for size in sizes], "input_dtypes": ["Float"], "output_sizes": [[4]]}
    what = {"process_group": group, "profiling_name": f"nccl:{name}", "state": state, "time_created_ns": number * 1000}
    others = {"output_dtypes": ["Float"], "retired": True, "timeout_ms": 600000, "is_p2p": False}
    named = [dict(zip(("name", "filename", "line"), frame)) for frame in frames]
    return {**numbers, **what, **data, **others, "frames": named, **fields}


def dump(*entries, ranks="[0, 1, 2, 3]", group=("0", "default_pg"), completed=-1):
    config = {group[0]: {"name": group[0], "desc": group[1], "ranks": ranks}}
    status = {"last_enqueued_collective": 9, "last_started_collective": 9, "last_completed_collective": completed}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": status}, "entries": list(entries)}


def report(directory, dumps, world_size=None):
    """Write dumps by rank; returns what is reported about them."""
    for rank, values in dumps.items():
        (directory / f"7.0-rank_{rank}").write_bytes(pickle.dumps(values, protocol=2))
    return report_dumps(str(directory), world_size)


def test_ranks_in_different_collectives_are_named_the_fewest_first(tmp_path):
    waiting, other = dump(call(7, state="started")), dump(call(7, "broadcast", "scheduled", line=99))
    lines = report(tmp_path, {0: waiting, 1: other, 2: waiting, 3: waiting})[0].splitlines()
    assert lines[1:] == [
        "group default_pg: the ranks do not agree on collective 7",
        "    rank 1: broadcast of Float [[4]], called at train.py:99",
        "    ranks 0,2-3: all_reduce of Float [[4]], called at train.py:120",
    ]


def test_ranks_with_different_sizes_are_named(tmp_path):
    dumps = {rank: dump(call(7, state="started", sizes=((4 + (rank == 3),),))) for rank in range(4)}
    lines = report(tmp_path, dumps)[0].splitlines()
    assert "    rank 3: all_reduce of Float [[5]], called at train.py:120" in lines
    gathered = {rank: dump(call(7, "all_gather", "started", sizes=((rank,),))) for rank in range(4)}
    assert "collective 7, all_gather, did not finish" in report(tmp_path, gathered)[0]


def test_a_rank_of_a_smaller_group_is_named_with_what_it_waits_for_elsewhere(tmp_path):
    pair, world = ("5", "tensor"), ("0", "default_pg")
    # rows of a mesh have one description
    config = {name: {"desc": "tensor", "ranks": ranks} for name, ranks in (("4", "[0, 1]"), ("5", "[2, 3]"))}
    config["0"] = {"desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    dumps = dict.fromkeys((0, 1, 2), {**dump(call(7, state="started")), "pg_config": config})
    elsewhere = call(4, "broadcast", "started", group=pair, time_created_ns=99000)
    dumps[3] = {**dump(call(6), elsewhere), "pg_config": config}
    lines = report(tmp_path, dumps)[0].splitlines()
    assert f"group {world[1]}: collective 7" in lines[1]
    assert "rank 3 did not start it: its last, broadcast (4 of group tensor (ranks 2-3)), did not finish" in lines[3]
    assert lines[4].startswith("group tensor (ranks 2-3): collective 4, broadcast")
    assert "rank 2 did not start it" in lines[6]


def test_collectives_that_all_finished_are_no_finding(tmp_path):
    done = dump(call(6), call(7, state="scheduled"), completed=7)  # the state is updated after the number
    text, status = report(tmp_path, dict.fromkeys(range(4), done))
    assert status == 0 and text.endswith("\nevery collective finished on every rank\n")


DONE = dump(call(6), call(7))


def all_but(last, number=4, other=DONE):
    """Dumps of ranks that are alike but for the last one."""
    return {**dict.fromkeys(range(number - 1), other), number - 1: last}


UNSIZED, NO_DUMP = dump(call(7), ranks="[]"), "no dump: rank 3. It ended before, or wrote elsewhere"
RECEIVING = dump(call(6), call(7), call(9, "recv 3<-2", "started", is_p2p=True))


@pytest.mark.parametrize(
    ("dumps", "world_size", "line"),
    [
        (all_but(DONE, 3), None, NO_DUMP),
        (all_but(UNSIZED, 4, UNSIZED), None, "the dumps do not tell the size of the world. Pass --world-size"),
        (all_but(UNSIZED, 3, UNSIZED), 4, NO_DUMP),
        (all_but(dump(), 4, dump()), None, "no collective is recorded"),
        (all_but(dump(call(6))), None, "group default_pg: rank 3 did not start collective 7: at 6 in its dump"),
        (all_but(RECEIVING), None, "group default_pg: rank 3: recv 3<-2 did not finish, called at train.py:120"),
    ],
)
def test_a_verdict_needs_the_whole_world(tmp_path, dumps, world_size, line):
    text, status = report(tmp_path, dumps, world_size)
    assert line in text.splitlines() and status == 1
    assert "every collective" not in text


def test_dumps_of_several_worlds_are_an_error(tmp_path):
    with pytest.raises(LaunchError, match=r"ranks 0-4 are not of a world of 4. Remove older dumps"):
        report(tmp_path, dict.fromkeys(range(5), DONE))
    with pytest.raises(LaunchError, match=r"ranks 0-4 are not of a world of 2 and 4. Remove older dumps"):
        report(tmp_path, {0: dump(call(7), ranks="[0, 1]")})


def test_older_dumps_are_read(tmp_path):
    """Version 1 and 2.0, of torch 2.2 and 2.3: `seq_id`, groups by name, no status."""
    old = {"process_group": "0", "pg_id": 0, "profiling_name": "nccl:all_reduce", "input_sizes": [[4]]}
    states = ({"seq_id": 3, "state": "scheduled"}, {"seq_id": 2, "state": "completed"})
    entries = [{**old, "time_created_ns": 5, **state} for state in states]
    dumps = {rank: {"version": "2.0", "entries": [entry]} for rank, entry in enumerate(entries)}
    lines = report(tmp_path, dumps, 2)[0].splitlines()
    assert lines[1:3] == ["group 0: collective 3, all_reduce of [[4]], did not finish", "    waiting: rank 0"]
    assert lines[3].startswith("    rank 1 did not start it: its last, all_reduce (2 of group 0), finished")


def test_the_newest_launch_of_a_directory_is_taken_or_the_named_one(tmp_path):
    for time, prefix in enumerate(("7.0-rank_", "8.0-rank_"), start=1000):
        path = tmp_path / f"{prefix}0"
        path.write_bytes(pickle.dumps(dump(call(1)), protocol=2))
        os.utime(path, (time, time))
    (tmp_path / "rank-00000.log").write_text("")
    assert find_dumps(str(tmp_path))[0] == f"{tmp_path}/8.0-rank_"
    assert find_dumps(f"{tmp_path}/7.0")[0] == f"{tmp_path}/7.0-rank_"
    with pytest.raises(LaunchError, match="no dumps in .*/9.0"):
        find_dumps(f"{tmp_path}/9.0")


class Planted:
    """What a pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_dump_that_would_run_something_is_rejected(tmp_path):
    target = tmp_path / "made"
    text, status = report(tmp_path, {0: dump(call(7, planted=Planted(target)))})
    assert (status, target.exists()) == (1, False)
    assert "7.0-rank_0: damaged or no dump: UnpicklingError: it would run posix.mkdir: not written by PyTorch" in text


#: The last one refers to an object outside the pickle.
DAMAGED = [b"", b"\x80", b"\x80\x02}", b"\x80\x02]q\x00.", b"{}", b"[1]", b"\xff\xfe", b"P1\n."]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_dump_is_named_and_the_others_are_read(tmp_path, content):
    (tmp_path / "7.0-rank_1").write_bytes(content)
    text, status = report(tmp_path, {0: dump(call(7, state="started"), ranks="[0, 1]")})
    assert "no verdict" not in text
    assert status == 1
    assert f"{tmp_path}/7.0-rank_1: " in text
    assert "    rank 1: no dump\n" in text

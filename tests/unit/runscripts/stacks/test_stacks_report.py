"""Where ranks are, in words: the odd ones first."""

import pytest
from pytorch_stacks import Thread
from pytorch_stacks.report import find_place, report_ranks
from stack_frames import DISTRIBUTED, IN_ALL_REDUCE, IN_NEXT_BATCH, SITE, rank

THREADING, MODULE = "/usr/lib/python3.11/threading.py", f"{SITE}/torch/nn/modules/module.py"
LOADER, DDP = f"{SITE}/torch/utils/data/dataloader.py", f"{SITE}/torch/nn/parallel/distributed.py"
WAITING = [["wait", THREADING, 359], ["get", "/usr/lib/python3.11/queue.py", 171]]
CALLING = [["Module._call_impl", MODULE, 1], ["Module.__call__", MODULE, 1]]
#: The user's line is that of `main`.
MAIN = ["main", "/t.py", 5]
PLACES = [
    (IN_ALL_REDUCE, "all_reduce at train.py:120"),
    (IN_NEXT_BATCH, "next_batch at data.py:44"),
    # a private function, a special one, and those that only call another one
    ([*WAITING, ["Iter._get", LOADER, 1243], ["Iter.__next__", LOADER, 701], MAIN], "__next__ at t.py:5"),
    ([["DistributedDataParallel.forward", DDP, 1600], *CALLING, MAIN], "forward at t.py:5"),
    # a collective that a library calls
    ([["barrier", DISTRIBUTED, 1], ["fit", f"{SITE}/lit/t.py", 3], MAIN], "barrier at t.py:5"),
    ([["_wait", "/usr/lib64/python3.9/threading.py", 1], MAIN], "_wait at t.py:5"),
    ([["run", THREADING, 982]], "run at threading.py:982"),
]


@pytest.mark.parametrize(("frames", "words"), PLACES)
def test_a_place_is_the_function_that_runs_and_the_users_own_line(frames, words):
    assert " at ".join(find_place(frames)) == words


def test_the_odd_rank_comes_first_with_its_node():
    many = [rank(number, size=512) for number in range(512) if number != 37]
    odd = rank(37, IN_NEXT_BATCH, node="nid0012", size=512)
    text, status = report_ranks("job 7", [*many, odd], [])
    lines = text.splitlines()
    assert status == 0
    assert lines[0] == "job 7, step 0: 512 ranks on 2 nodes"
    assert lines[1] == "rank 37 (nid0012) in next_batch at data.py:44"
    assert lines[2].split() == ["next_batch", "/home/u/data.py:44"]
    assert "511 ranks in all_reduce at train.py:120: 0-36,38-511" in lines
    assert lines[-4].split() == ["all_reduce", "torch/distributed/distributed_c10d.py:3252"]


def test_ranks_without_a_process_or_a_stack_come_before_all_others():
    found = [rank(0), rank(3, fault="the process has ended")]
    text, status = report_ranks("job 7", found, [("nid0002", "no answer")])
    lines = text.splitlines()
    assert status == 1
    assert lines[1:3] == ["rank 1-2: no process found", "rank 3 (nid0001): no stack: the process has ended"]
    assert lines[3] == "rank 0 (nid0001) in all_reduce at train.py:120"
    assert lines[-1] == "nid0002: no answer"


def test_other_threads_are_shown_if_they_run_code_of_the_user():
    threads = [
        Thread("pin", [["run", THREADING, 982]]),
        Thread("writer", [["hold", "/home/u/log.py", 7]]),
    ]
    # workers of a DataLoader
    forked = [["Process._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314], *IN_NEXT_BATCH]
    loop = ["_worker_loop", f"{SITE}/torch/utils/data/_utils/worker.py", 9]
    threads.append(Thread("of process 8", [loop, *forked]))
    threads.append(Thread("of process 9", [["Images.__getitem__", "/home/u/data.py", 7], loop, *forked]))
    text, _ = report_ranks("job 7", [rank(0, threads=threads)], [])
    assert "    thread writer in hold at log.py:7\n" in text and "pin" not in text
    assert "    thread of process 9 in Images.__getitem__ at data.py:7\n" in text and "process 8" not in text

"""training/distributed.py: the threads of Gloo, their end and their scheduling policy."""

import os

import pytest

GLOO_THREADS = """
import os, time
from contextlib import suppress
from pathlib import Path
from training.distributed import process_group
from torch import nn, ones
from torch.nn.parallel import DistributedDataParallel

def gloo_threads():
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended since it was listed
            names.append((thread / "comm").read_text())
    return [name for name in names if "gloo" in name]

def no_gloo_threads():
    # The kernel lists a thread for a moment after it was joined, on a busy machine for longer.
    end = time.monotonic() + 60
    while gloo_threads() and time.monotonic() < end:
        time.sleep(0.01)
    return not gloo_threads()

"""


def test_no_thread_of_gloo_outlives_the_process_group_also_after_an_exception(run_code):
    # It may abort the process when Python ends, or wait for ever for Python's lock, which the end of the model's
    # process group holds.
    (rank,) = run_code(
        1,
        GLOO_THREADS
        + """
def train(status):
    model = DistributedDataParallel(nn.Linear(3, 3))
    model(ones(2, 3)).sum().backward()
    assert gloo_threads()
    if status:
        raise SystemExit(status)

for status in (0, 75):
    try:
        with process_group(os.environ, use_gpu=False, timeout=600):
            train(status)
    finally:
        assert no_gloo_threads()
""",
    )
    assert rank.status == 75, rank.stderr


def test_the_end_of_a_process_group_waits_for_a_thread_of_gloo_that_works(run_code):
    # Here a thread that has the name of gloo's: theirs work for microseconds, too short to be met.
    (rank,) = run_code(
        1,
        """
import os, threading
from hashlib import pbkdf2_hmac
from pathlib import Path
from training.distributed import process_group

started, ended = threading.Event(), threading.Event()

def work():
    Path("/proc/thread-self/comm").write_text("pt_gloo_runloop")
    started.set()
    pbkdf2_hmac("sha256", b"", b"", 500_000)  # without Python's lock
    ended.set()
    threading.Event().wait()  # for the next work, as gloo's do

with process_group(os.environ, use_gpu=False, timeout=600):
    threading.Thread(target=work, daemon=True).start()
    started.wait()
assert ended.is_set()
""",
    )
    assert rank.status == 0, rank.stderr


POLICIES = """
import os
from pathlib import Path
import torch.distributed as dist
from training.distributed import process_group

%s
before = os.sched_getscheduler(0)
with process_group(os.environ, use_gpu=False, timeout=600):
    assert os.sched_getscheduler(0) == before
    dist.barrier()  # so that the threads have given themselves their names
    for thread in Path("/proc/self/task").iterdir():
        print((thread / "comm").read_text().strip(), os.sched_getscheduler(int(thread.name)))
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has SCHED_BATCH")
def test_gloos_threads_do_not_take_the_core_from_each_other(run_code):
    (rank, _) = run_code(2, POLICIES % "")
    policies = {name: int(policy) for name, policy in map(str.split, rank.stdout.splitlines())}
    assert {"gloo_tcp_loop", "pt_gloo_runloop"} <= policies.keys(), rank.stderr
    assert policies["gloo_tcp_loop"] == policies["pt_gloo_runloop"] == os.SCHED_BATCH


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has SCHED_BATCH")
@pytest.mark.parametrize(
    "before",
    [
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "def refuse(*_): raise PermissionError()\nos.sched_setscheduler = refuse",
    ],
    ids=["a policy that the user chose", "where it is forbidden"],
)
def test_another_policy_stays(run_code, before):
    (rank,) = run_code(1, POLICIES % before)
    assert rank.status == 0, rank.stderr
    assert {int(line.split()[-1]) for line in rank.stdout.splitlines()}.isdisjoint({os.SCHED_BATCH})

"""training/distributed.py: who the ranks are, their process group with the threads of Gloo, and how they part."""

import os
import socket
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from launching import run_code, run_ranks
from training import TrainingError
from training.distributed import process_group, read_ranks, select_device

pytestmark = pytest.mark.slow

LAUNCHED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "nid001001", "MASTER_PORT": "29400"}


def test_the_ranks_are_read_from_torchs_variables():
    assert read_ranks(LAUNCHED) == (5, 8, 1)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": None}, "RANK=not set, WORLD_SIZE=8"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE=not set, LOCAL_RANK=1"),
        ({"RANK": "five"}, "RANK=five"),
        ({"RANK": "8"}, "RANK=8, WORLD_SIZE=8"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK=-1"),
    ],
)
def test_variables_that_make_no_sense_are_errors(variables, message):
    environment = {name: value for name, value in {**LAUNCHED, **variables}.items() if value is not None}
    with pytest.raises(TrainingError, match=message):
        read_ranks(environment)


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs in view; the list of those that were made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


@pytest.mark.parametrize(("local_rank", "device"), [(1, "cuda:1"), (5, "cuda:1")])
def test_a_rank_takes_the_gpu_of_its_local_rank_among_those_in_view(two_gpus, local_rank, device):
    assert select_device(True, local_rank) == torch.device(device)
    assert two_gpus == [torch.device(device)]
    assert select_device(False, local_rank) == torch.device("cpu")


def test_no_gpu_in_view_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="--gpu: torch .* sees no GPU. Run where one is visible"):
        select_device(True, 0)


@pytest.mark.parametrize(
    ("fault", "end"),
    [(OSError, "abort"), (SystemExit, "destroy"), (None, "destroy")],
)
def test_a_rank_that_fails_alone_does_not_wait_for_the_others_on_their_gpus(monkeypatch, two_gpus, fault, end):
    ends = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: ends.append("destroy"))
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", lambda: ends.append("abort"), raising=False)
    with suppress(BaseException), process_group({}, use_gpu=True, timeout=10):
        if fault:
            raise fault
    assert ends == [end]


def test_a_world_of_one_has_a_process_group_without_a_port_for_the_length_of_the_block(monkeypatch):
    monkeypatch.setattr(dist, "TCPStore", None)
    with suppress(KeyError), process_group(
        {**LAUNCHED, "RANK": "0", "WORLD_SIZE": "1"}, use_gpu=False, timeout=10
    ) as world:
        assert world == (0, 1, torch.device("cpu"), None)
        assert dist.get_world_size() == 1 and dist.get_backend() == "gloo"
        raise KeyError
    assert not dist.is_initialized()


PROGRAM = """
sys.argv = ["train.py", "{argument}" + os.environ["RANK"]]
from training.failing import fail_in_one_line
with fail_in_one_line(), process_group(os.environ, use_gpu=False, timeout=600):
    print("together")
"""


def test_ranks_of_two_programs_at_one_port_are_an_error():
    first, second = run_code(2, PROGRAM.format(argument="--lr="), status=1)
    assert (first.stdout, first.stderr, second.stdout) == ("", "", "")
    error = "rank 1: the ranks run different programs: rank 0 train.py --lr=0, rank 1 train.py --lr=1. "
    assert second.stderr.startswith(error)


@pytest.mark.parametrize("argument", ["--local-rank=", "--local_rank="])
def test_an_option_that_torchs_old_launcher_gives_to_each_rank_is_no_difference(argument):
    assert [rank.stdout for rank in run_code(2, PROGRAM.format(argument=argument))] == ["together\n"] * 2


def test_a_rank_0_whose_port_is_in_use_reports_it(monkeypatch):
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        environment = {**LAUNCHED, "RANK": "0", "MASTER_PORT": str(other.getsockname()[1])}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(TrainingError, match="nid001001:.*EADDRINUSE.*export another MASTER_PORT"):  # noqa: SIM117
            with process_group(environment, use_gpu=False, timeout=10):
                pass


def test_ranks_that_do_not_come_are_missed_at_the_rendezvous():
    rank, _ = run_ranks(2, "--timeout", "1", environments=[{}, {"RANK": "x"}], status=1)  # it ends at once
    assert rank.stdout == ""
    assert rank.stderr.splitlines()[-1].startswith("rank 0: no rendezvous at 127.0.0.1:")
    assert "all 2 ranks" in rank.stderr and "Traceback" not in rank.stderr


def test_sums_are_over_all_ranks_and_a_fault_of_some_ends_all_with_the_word_of_the_lowest():
    ranks = run_code(
        3,
        """
from training.distributed import fail_together, sum_over_ranks

with process_group(os.environ, use_gpu=False, timeout=600) as world:
    with fail_together(world):
        pass
    print(sum_over_ranks(torch.tensor([1, world.rank])))
    with fail_together(world):
        if world.rank > 0:
            raise OSError(f"disk of rank {world.rank}")
    print("went on")
""",
        status=1,
    )
    assert [rank.stdout for rank in ranks] == ["[3, 3]\n"] * 3
    assert [rank.stderr.count("OSError: disk of rank") for rank in ranks] == [0, 1, 0]


def test_no_thread_of_gloo_outlives_the_process_group_also_after_an_exception():
    # It may abort the process when Python ends, or wait for ever for Python's lock, which the end of the model's
    # process group holds.
    run_code(
        1,
        """
from contextlib import suppress
from torch.nn.parallel import DistributedDataParallel

def gloo_threads():
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it ended since it was listed
            names.append((thread / "comm").read_text())
    return [name for name in names if "gloo" in name]

def train(status):
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    assert gloo_threads()
    if status:
        raise SystemExit(status)

for status in (0, 75):
    try:
        with process_group(os.environ, use_gpu=False, timeout=600):
            train(status)
    finally:
        # The kernel lists a thread for a moment after it was joined, on a busy machine for longer.
        end = time.monotonic() + 60
        while gloo_threads() and time.monotonic() < end:
            time.sleep(0.01)
        assert not gloo_threads()
""",
        status=75,
    )


def test_the_end_of_a_process_group_waits_for_a_thread_of_gloo_that_works():
    # Here a thread that has the name of gloo's: theirs work for microseconds, too short to be met.
    run_code(
        1,
        """
from hashlib import pbkdf2_hmac

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


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has SCHED_BATCH")
def test_gloos_threads_do_not_take_the_core_from_each_other():
    (rank, _) = run_code(
        2,
        """
before = os.sched_getscheduler(0)
with process_group(os.environ, use_gpu=False, timeout=600):
    assert os.sched_getscheduler(0) == before
    dist.barrier()  # so that the threads have given themselves their names
    for thread in Path("/proc/self/task").iterdir():
        print((thread / "comm").read_text().strip(), os.sched_getscheduler(int(thread.name)))
""",
    )
    policies = {name: int(policy) for name, policy in map(str.split, rank.stdout.splitlines())}
    assert {"gloo_tcp_loop", "pt_gloo_runloop"} <= policies.keys(), rank.stderr
    assert policies["gloo_tcp_loop"] == policies["pt_gloo_runloop"] == os.SCHED_BATCH

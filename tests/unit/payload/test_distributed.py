"""training/distributed.py: who the ranks are, how they meet, and how they part."""

import os
import socket
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from training import TrainingError, distributed
from training.allreduce.roll_call import RollCall
from training.data import digits_set, fingerprint
from training.distributed import process_group, read_launch, read_ranks, rendezvous, select_device

LAUNCHED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "nid001001", "MASTER_PORT": "29400"}
TEN_SECONDS = timedelta(seconds=10)


def test_the_ranks_are_read_from_torchs_variables():
    assert read_ranks(LAUNCHED) == (5, 8, 1)


def test_without_torchs_variables_the_world_is_one_rank():
    assert read_ranks({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "MASTER_ADDR": "nid001001"}) == (0, 1, 0)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": None}, "RANK not set"),
        ({"WORLD_SIZE": None, "MASTER_ADDR": ""}, "WORLD_SIZE, MASTER_ADDR not set"),
        ({"LOCAL_RANK": None}, "LOCAL_RANK not set"),
        ({"RANK": "five"}, "must be integers .*'five'"),
        ({"RANK": "8"}, "RANK 8 of WORLD_SIZE 8 .* is invalid"),
        ({"RANK": "-1"}, "RANK -1 of WORLD_SIZE 8 .* is invalid"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK -1 is invalid"),
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


@pytest.mark.parametrize(("local_rank", "index"), [(0, 0), (1, 1), (2, 0), (5, 1)])
def test_a_rank_takes_the_gpu_of_its_local_rank_among_those_in_view(two_gpus, local_rank, index):
    device = select_device(True, local_rank)
    assert device == torch.device("cuda", index)
    assert two_gpus == [device]


@pytest.fixture
def tiles(monkeypatch):
    """Twelve of Intel's in view, and no CUDA; the list of those that were made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(
        torch, "xpu", SimpleNamespace(is_available=lambda: True, device_count=lambda: 12, set_device=current.append),
        raising=False,
    )  # fmt: skip
    monkeypatch.setattr(dist, "is_xccl_available", lambda: True, raising=False)
    return current


def test_a_rank_takes_the_tile_of_its_local_rank_where_the_gpus_are_intels(tiles):
    device = select_device(True, 13)
    assert device == torch.device("xpu", 1)
    assert tiles == [device]


def test_a_torch_without_xccl_is_one_sentence(monkeypatch, tiles):
    monkeypatch.setattr(dist, "is_xccl_available", lambda: False)
    with pytest.raises(TrainingError, match="has no XCCL.* Use torch 2.8 or newer"):
        select_device(True, 0)


@pytest.mark.parametrize(("gpus", "backend"), [("two_gpus", "nccl"), ("tiles", "xccl")])
def test_the_collectives_are_those_of_the_kind_of_gpu(monkeypatch, request, gpus, backend):
    request.getfixturevalue(gpus)
    backends = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: backends.append(backend))
    monkeypatch.setattr(dist, "new_group", lambda backend, **_: backends.append(backend))
    with process_group({}, use_gpu=True, timeout=10) as world:
        assert backends == [backend, "gloo"]
        assert world.device.type == torch.device("cuda" if gpus == "two_gpus" else "xpu").type


def test_without_gpu_the_device_is_the_cpu_even_where_gpus_are(two_gpus):
    assert select_device(False, 1) == torch.device("cpu")
    assert two_gpus == []


def test_no_gpu_in_view_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(TrainingError, match="--gpu: torch .* sees no GPU. Run where one is visible"):
        select_device(True, 0)


def test_a_world_of_one_has_a_process_group_for_the_length_of_the_block():
    with process_group({}, use_gpu=False, timeout=10) as world:
        assert world == (0, 1, torch.device("cpu"), None)
        assert dist.get_world_size() == 1 and dist.get_backend() == "gloo"
    assert not dist.is_initialized()


def test_the_process_group_is_destroyed_when_the_block_fails():
    with pytest.raises(KeyError), process_group({}, use_gpu=False, timeout=10):
        raise KeyError
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("fault", "end"),
    [(OSError, "abort"), (SystemExit, "destroy"), (KeyboardInterrupt, "destroy"), (None, "destroy")],
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


def test_worlds_of_one_do_not_share_a_port(monkeypatch):
    monkeypatch.setattr(dist, "TCPStore", None)
    with process_group({**LAUNCHED, "RANK": "0", "WORLD_SIZE": "1"}, use_gpu=False, timeout=10) as world:
        assert world.size == 1


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
    end = time.monotonic() + 10
    while gloo_threads() and time.monotonic() < end:
        time.sleep(0.01)
    return not gloo_threads()

"""


def test_no_thread_of_gloo_outlives_the_process_group(run_code):
    # A thread that does may abort the process when Python ends.
    (rank,) = run_code(
        1,
        GLOO_THREADS
        + """
with process_group(os.environ, use_gpu=False, timeout=60):
    model = DistributedDataParallel(nn.Linear(3, 3))
    model(ones(2, 3)).sum().backward()
    assert gloo_threads()
    del model
assert no_gloo_threads()
""",
    )
    assert rank.status == 0, rank.stderr


def test_no_thread_of_gloo_outlives_a_process_group_that_ends_by_an_exception(run_code):
    # It may wait for ever for Python's lock, which the end of the model's process group holds.
    (rank,) = run_code(
        1,
        GLOO_THREADS
        + """
def train():
    model = DistributedDataParallel(nn.Linear(3, 3))
    model(ones(2, 3)).sum().backward()
    assert gloo_threads()
    raise SystemExit(75)

try:
    with process_group(os.environ, use_gpu=False, timeout=60):
        train()
except SystemExit:
    assert no_gloo_threads()
    raise
""",
    )
    assert rank.status == 75, rank.stderr


POLICIES = """
import os
from pathlib import Path
import torch.distributed as dist
from training.distributed import process_group

%s
before = os.sched_getscheduler(0)
with process_group(os.environ, use_gpu=False, timeout=60):
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


def test_ranks_that_do_not_come_are_missed_at_the_rendezvous(start_ranks):
    ranks = start_ranks(2, "--timeout", "1")
    ranks.processes.pop().kill()
    (rank,) = ranks.wait()
    assert rank.status == 1 and rank.stdout == ""
    assert rank.stderr.splitlines()[-1].startswith("rank 0: rendezvous at 127.0.0.1:")
    assert "all 2 ranks" in rank.stderr and "Traceback" not in rank.stderr


def test_sums_are_over_all_ranks_and_a_fault_of_some_ends_all_with_the_word_of_the_lowest(run_code):
    ranks = run_code(
        3,
        """
import os, torch
from training.distributed import fail_together, process_group, sum_over_ranks

with process_group(os.environ, use_gpu=False, timeout=60) as world:
    with fail_together(world):
        pass
    print(sum_over_ranks(torch.tensor([1, world.rank])))
    with fail_together(world):
        if world.rank > 0:
            raise OSError(f"disk of rank {world.rank}")
    print("went on")
""",
    )
    assert [rank.stdout for rank in ranks] == ["[3, 3]\n"] * 3
    assert [rank.status for rank in ranks] == [1, 1, 1]
    assert [rank.stderr.count("OSError: disk of rank") for rank in ranks] == [0, 1, 0]


@pytest.fixture
def rank_0():
    """Rank 0 of launch 90000.0 at its rendezvous: its variables, and what it passes to `init_process_group`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTORCH_LAUNCH_ID": "90000.0"}
    return environment, rendezvous(environment, 0, 2, TEN_SECONDS)["store"]


def test_ranks_of_one_launch_meet_under_its_name(rank_0):
    environment, store = rank_0
    store.set("key", "value")
    assert rendezvous(environment, 1, 2, TEN_SECONDS)["store"].get("key") == b"value"
    plain = dist.TCPStore("127.0.0.1", int(environment["MASTER_PORT"]), wait_for_workers=False)
    assert not plain.check(["key"])


def test_a_rank_of_another_launch_does_not_join(rank_0):
    environment, _ = rank_0
    message = "is the rendezvous of another launch: 90000.0, expected 90001.0. Start again"
    with pytest.raises(TrainingError, match=message):
        rendezvous({**environment, "PYTORCH_LAUNCH_ID": "90001.0"}, 1, 2, TEN_SECONDS)


def test_a_rank_does_not_join_a_program_that_names_no_launch(monkeypatch):
    monkeypatch.setattr(distributed, "LAUNCH_LIMIT", timedelta(seconds=0.1))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "PYTORCH_LAUNCH_ID": "90001.0"}
    with pytest.raises(TrainingError, match="another launch: unknown, expected 90001.0"):
        rendezvous(environment, 1, 2, TEN_SECONDS)


def test_a_rank_0_whose_port_is_in_use_reports_it():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        environment = {**LAUNCHED, "RANK": "0", "MASTER_PORT": str(other.getsockname()[1]), "PYTORCH_LAUNCH_ID": "7.0"}
        with pytest.raises(TrainingError, match="nid001001:.* is in use by another process. Start again"):  # noqa: SIM117
            with process_group(environment, use_gpu=False, timeout=10):
                pass


@pytest.mark.parametrize(
    ("variables", "launch"),
    [
        ({}, None),
        ({"PYTORCH_LAUNCH_ID": "7.0"}, "7.0"),
        ({"PYTORCH_LAUNCH_ID": "7.0", "TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "2"}, "run"),
    ],
)
def test_the_launch_is_torchruns_or_our_launchers(variables, launch):
    assert read_launch(variables) == launch


def test_what_torch_2_0_lacks_is_not_used(monkeypatch, rank_0):
    for owner, name in ((dist.Store, "check"), (dist.TCPStore, "check"), (dist, "DistStoreError")):
        monkeypatch.delattr(owner, name, raising=False)
    for owner, name in ((torch.Tensor, "nbytes"), (torch._C.TensorBase, "nbytes")):
        with suppress(TypeError, AttributeError):
            monkeypatch.delattr(owner, name)
    environment, _ = rank_0
    assert rendezvous(environment, 1, 2, TEN_SECONDS)["store"]
    assert len(fingerprint(digits_set())) == 32
    with process_group({}, use_gpu=False, timeout=10):
        assert RollCall(0, 1).missing(1) == []

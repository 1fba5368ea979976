"""training/distributed.py: ranks meet under the name of their launch."""

import socket
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ports import port_of, reserve_port
from training import TrainingError, distributed
from training.allreduce import Ranks
from training.data import digits_set, fingerprint
from training.distributed import process_group, read_launch, rendezvous

LAUNCHED = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "nid001001", "MASTER_PORT": "29400"}
MINUTES = timedelta(minutes=5)


@pytest.fixture
def rank_0():
    """Rank 0 of launch 90000.0 at its rendezvous: its variables, and what it passes to `init_process_group`."""
    with reserve_port() as reserved:
        port = str(port_of(reserved))
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTORCH_LAUNCH_ID": "90000.0"}
        return environment, rendezvous(environment, 0, 2, MINUTES)["store"]


def test_ranks_of_one_launch_meet_under_its_name(rank_0):
    environment, store = rank_0
    store.set("key", "value")
    assert rendezvous(environment, 1, 2, MINUTES)["store"].get("key") == b"value"
    plain = dist.TCPStore("127.0.0.1", int(environment["MASTER_PORT"]), wait_for_workers=False)
    assert not plain.check(["key"])


def test_a_rank_of_another_launch_does_not_join(rank_0):
    environment, _ = rank_0
    message = "is the rendezvous of another launch: 90000.0, expected 90001.0. Start again"
    with pytest.raises(TrainingError, match=message):
        rendezvous({**environment, "PYTORCH_LAUNCH_ID": "90001.0"}, 1, 2, MINUTES)


def test_a_rank_does_not_join_a_program_that_names_no_launch(monkeypatch):
    monkeypatch.setattr(distributed, "LAUNCH_LIMIT", timedelta(seconds=0.1))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "PYTORCH_LAUNCH_ID": "90001.0"}
    with pytest.raises(TrainingError, match="another launch: unknown, expected 90001.0"):
        rendezvous(environment, 1, 2, MINUTES)


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
    assert rendezvous(environment, 1, 2, MINUTES)["store"]
    assert len(fingerprint(digits_set())) == 32
    with process_group({}, use_gpu=False, timeout=10) as world:
        assert Ranks(world, 1).missing(1) == []

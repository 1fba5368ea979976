"""training/allreduce: where ranks are, what they add up, how long they take."""

import os
import sys
import threading
import time

import pytest
import torch
from allreduce_check import pairs_in_turn, sum_of
from fake_ranks import HEAD, NOT_FOUND, TWO_NODES, FakeRanks
from training import allreduce
from training.allreduce import slow_ones


def test_nodes_with_different_numbers_of_ranks_have_no_shape():
    assert FakeRanks(["n1", "n1", "n2"]).shape is None
    assert TWO_NODES.shape == (2, 2)


def test_neighbours_are_on_other_nodes_however_the_ranks_are_laid_out():
    for hosts, ring in ((["a"] * 3, [0, 1, 2]), (["a", "a", "b", "b"], [1, 3]), (["a", "b", "a", "b"], [0, 1])):
        ranks = FakeRanks(hosts)
        ranks.rank = ring[-1]
        assert ranks.ring == ring
        ranks.rank = ring[0]
        assert ranks.ring == ring


def test_of_many_ranks_some_are_named():
    assert TWO_NODES.name([2]) == "rank 2 (n2)"
    assert FakeRanks(["n"] * 100).name(range(100)).endswith(", 7 (n) and 92 more")


def test_a_collective_that_never_ends_is_the_ranks_last_sentence_before_torch_ends_it(monkeypatch, capsys):
    class Event:
        ends, queries = False, 0

        def record(self):
            pass

        def query(self):
            Event.queries += 1
            return self.ends and Event.queries >= 0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(os, "_exit", sys.exit)
    ranks = FakeRanks(["n1", "n2"])
    ranks.device, ranks.timeout, ranks.read_log = torch.device("cuda", 0), 0.01, lambda: NOT_FOUND + HEAD + "x\n"
    with pytest.raises(SystemExit) as ended:
        ranks.wait_for_device()
    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("FAIL rank 0 (n1): a collective of NCCL did not end within 0.009 s (NCCL warning: Error: ")
    ranks.timeout, Event.ends, Event.queries = 60, True, -3
    ranks.wait_for_device()
    assert Event.queries == 0


def test_a_call_that_connects_the_ranks_of_a_group_and_never_returns_ends_the_process(monkeypatch, capfd):
    """As on LUMI: https://github.com/lumi-ai-factory/laifs-container-recipes/issues/44."""
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda _: ended.set())
    monkeypatch.setattr(allreduce, "WATCH_SECONDS", 0.01)
    ranks = FakeRanks(["n1", "n2"])
    ranks.device, ranks.timeout, ranks.read_log = torch.device("cuda", 0), 0.1, lambda: ""
    with ranks.watch_calls():
        ranks.calling_since = None  # waiting for a rank over TCP, with a time limit of its own
        assert not ended.wait(0.3)
        ranks.calling_since = time.monotonic()
        assert ended.wait(60)
    assert "FAIL rank 0 (n1): a call of NCCL did not return within 0.09 s. Try without" in capfd.readouterr().err


def test_after_the_checks_and_between_cpus_no_call_is_watched(monkeypatch):
    monkeypatch.setattr(allreduce, "WATCH_SECONDS", 0.01)
    before = set(threading.enumerate())
    ranks = FakeRanks(["n1", "n2"])
    with ranks.watch_calls():
        assert not set(threading.enumerate()) - before
    ranks.device, ranks.timeout = torch.device("cuda", 0), 60
    with ranks.watch_calls():
        (thread,) = set(threading.enumerate()) - before
    thread.join(60)
    assert not thread.is_alive()


def test_the_sum_of_the_contributions_is_exact_and_differs_for_every_rank_and_place():
    device = torch.device("cpu")
    parts = [sum_of([rank], 400, device) for rank in range(5)]
    assert torch.equal(sum(parts), sum_of(range(5), 400, device))
    assert len({tuple(part.tolist()) for part in parts}) == 5
    assert parts[0].shape == (100,)
    assert not torch.equal(parts[0][:50], parts[0][50:])


def test_neighbours_are_paired_so_that_no_rank_is_asked_twice_at_once():
    for count in range(2, 9):
        turns = pairs_in_turn(count)
        for turn in turns:
            places = [place for pair in turn for place in pair]
            assert len(places) == len(set(places))
        pairs = sorted(tuple(sorted(pair)) for turn in turns for pair in turn)
        ring = sorted({tuple(sorted((place, (place + 1) % count))) for place in range(count)})
        assert pairs == ring
    assert pairs_in_turn(1) == []


def test_a_rank_is_slow_in_comparison_with_the_middle_one():
    assert slow_ones([1.0, 1.1, 3.0, 0.9], 2) == [2]
    assert slow_ones([1.0, 2.0], 2) == [1]
    assert slow_ones([2.0, 1.9, 0.1], 2) == []
    assert slow_ones([None, 1.0, 3.0], 2) == [2]
    assert slow_ones([None, None], 2) == []

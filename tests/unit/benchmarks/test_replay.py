"""The simulation of many ranks that ask one file system."""

import pytest

from benchmarks.replay import Call, Record, Server, read_record, start_seconds

SERVER = Server(0.001, 1e-9)
NOTHING = {}
NFS = {"L": 30, "A": 30, "D": 30}
#: A rank that asks 100 names within 0.2 s.
RECORD = Record([Call(0.002, "L", f"name-{n}") for n in range(100)], 0.1)


def seconds(record=RECORD, *, nodes=1, ranks_per_node=1, remembers=NOTHING, cores=None):
    return start_seconds(
        record, SERVER, nodes=nodes, ranks_per_node=ranks_per_node, remembers=remembers, cores=cores
    )


def test_a_lone_rank_takes_as_long_as_it_did():
    assert seconds() == pytest.approx(100 * (0.002 + 0.001) + 0.1)


def test_many_ranks_take_as_long_as_the_server_needs_for_all_calls():
    assert seconds(nodes=16, ranks_per_node=8) == pytest.approx(128 * 100 * 0.001 + 0.1, rel=0.01)


def test_ranks_of_a_node_ask_once_for_what_its_kernel_remembers():
    assert seconds(ranks_per_node=8, remembers=NFS) == pytest.approx(seconds(), rel=0.01)
    assert seconds(nodes=2, ranks_per_node=8, remembers=NFS) == pytest.approx(seconds(nodes=2), rel=0.01)


def test_each_open_asks_the_server_and_a_name_is_asked_again_after_its_time():
    opens = Record([Call(0.002, "O", "file")] * 100, 0.1)
    assert seconds(opens, remembers=NFS) == pytest.approx(seconds())
    again = Record([Call(0.002, "L", "file"), Call(0.002, "A", "file"), Call(31, "L", "file")], 0)
    assert seconds(again, remembers=NFS) == pytest.approx(31.004 + 2 * 0.001)


def test_each_node_reads_the_same_bytes_once():
    reads = Record([Call(0, "R", "library", offset, 10**6) for offset in range(0, 10**8, 10**6)], 0)
    assert seconds(reads, ranks_per_node=8) == pytest.approx(0.1)
    assert seconds(reads, nodes=4, ranks_per_node=8) == pytest.approx(0.4)


def test_a_large_world_is_simulated_by_a_slower_server():
    whole = seconds(nodes=16, ranks_per_node=2)
    assert seconds(nodes=64, ranks_per_node=2) == pytest.approx(4 * (whole - 0.1) + 0.1, rel=0.01)


def test_ranks_that_share_cores_compute_in_turn():
    assert seconds(Record([], 1), ranks_per_node=6, cores=2) == 3


def test_a_record_has_the_seconds_between_its_calls():
    lines = "1000 1100 L 0 0 ./a", "1300 1500 R 4096 10 ./c", "9000 9100 O 0 0 ./after-the-end"
    text = "\n".join(lines).replace("00 ", "00000000 ").replace(" ", "\t")
    record = read_record(text, 0.5, 2)
    assert [call[1:] for call in record.calls] == [("L", "./a", 0, 0), ("R", "./c", 4096, 10)]
    assert [call.computing for call in record.calls] == pytest.approx([0.5, 0.2])
    assert record.computing == pytest.approx(0.5)

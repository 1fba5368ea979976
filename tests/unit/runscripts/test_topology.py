"""The hardware of a node, as its files tell it."""

import os
from pathlib import Path

import node_trees
import pytest
from pytorch_launch import topology


def test_a_gpu_in_partitions_has_one_address(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="amd", gpus={"0001:03:1f.2": 0})
    properties = node_trees.amd_properties(tmp_path, 1)
    location = 0x03FA | 5 << 28
    properties.write_text(f"simd_count 152\nlocation_id {location}\ndomain 1\n")
    assert [gpu.pci for gpu in topology.Node(root).gpus] == ["0001:03:1f.2"]


def test_a_graphics_card_counts_before_the_graphics_of_the_processor(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="nvidia", gpus={"0000:01:00.0": 0})
    node_trees.write_amd_nodes(tmp_path, 1, {"0000:00:08.0": 0})
    assert [gpu.vendor for gpu in topology.Node(root).gpus] == ["nvidia"]


def test_numa_nodes_may_have_memory_only(tmp_path):
    root = node_trees.node(tmp_path, cores=4, numa_nodes=2, threads=1)
    nodes = tmp_path / "sys/devices/system/node"
    node_trees.write(nodes / "node10/cpulist", "")
    assert topology.Node(root).numa == {0: {0, 1}, 1: {2, 3}, 10: set()}


def test_a_node_of_the_other_socket_is_farther(dgx, gh200):
    assert topology.Node(dgx).distances(5) == {0: 32, 1: 32, 2: 32, 3: 32, 4: 12, 5: 10, 6: 12, 7: 12}
    distances = topology.Node(gh200).distances(1)  # with nodes of memory alone behind those with CPUs
    assert [distances[number] for number in range(4)] == [32, 10, 32, 32]


def test_nodes_without_a_table_are_equally_far(tmp_path):
    root = node_trees.node(tmp_path, cores=4, numa_nodes=2)
    (tmp_path / "sys/devices/system/node/node0/distance").unlink()
    assert topology.Node(root).distances(0) == {0: 0, 1: 0}


def test_the_threads_of_a_core_are_found_under_both_names(tmp_path):
    root = node_trees.laptop(tmp_path)
    assert topology.Node(root).cores({1, 5}) == [[1, 5]]
    directory = tmp_path / "sys/devices/system/cpu/cpu5/topology"
    (directory / "thread_siblings_list").rename(directory / "core_cpus_list")
    assert topology.Node(root).cores({5, 1}) == [[1, 5]]
    (directory / "core_cpus_list").unlink()
    assert topology.Node(root).cores({5}) == [[5]]


@pytest.mark.parametrize(
    ("cpus", "text"),
    [(set(), ""), ({0}, "0"), ([8, 2, 1, 0], "0-2,8"), ({1, 3, 5}, "1,3,5"), ({0, 1, 64, 65}, "0-1,64-65")],
)
def test_cpus_are_listed_as_the_kernel_lists_them(cpus, text):
    assert topology.cpu_list(cpus) == text
    assert topology.parse_cpu_list(text) == set(cpus)


@pytest.mark.skipif(not Path("/sys/devices/system/cpu/online").exists(), reason="this kernel shows no /sys")
def test_this_machine_runs_on_cpus_that_are_online():
    node = topology.Node("")
    assert os.sched_getaffinity(0) <= node.online
    assert sorted(cpu for core in node.cores(node.online) for cpu in core) == sorted(node.online)


def test_what_cannot_be_read_is_not_there(tmp_path):
    root = str(tmp_path)
    node = topology.Node(root)
    assert topology.read(root) is topology.read(f"{root}/missing") is None  # a directory, and nothing
    assert topology.names(f"{root}/missing") == node.gpus == node.all_gpus == []
    assert (node.numa, node.online, node.has_threads) == ({}, set(), True)


def test_gpus_whose_device_files_a_container_leaves_out_do_not_count(tmp_path):
    root = node_trees.perlmutter(tmp_path)
    assert len(topology.Node(root).gpus) == 4
    (tmp_path / "dev" / "nvidiactl").unlink()
    assert topology.Node(root).gpus == []

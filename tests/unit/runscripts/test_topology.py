"""The hardware of a node, as its files tell it."""

import node_trees
from pytorch_launch import topology


def test_a_gpu_in_partitions_has_one_address(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="amd", gpus={"0001:03:1f.2": 0})
    properties = node_trees.amd_properties(tmp_path, 1)
    location = 0x03FA | 5 << 28
    properties.write_text(f"simd_count 152\nlocation_id {location}\ndomain 1\n")
    assert [gpu.pci for gpu in topology.read_node(root).gpus] == ["0001:03:1f.2"]


def test_a_graphics_card_counts_before_the_graphics_of_the_processor(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="nvidia", gpus={"0000:01:00.0": 0})
    node_trees.write_amd_nodes(tmp_path, 1, {"0000:00:08.0": 0})
    assert [gpu.vendor for gpu in topology.read_node(root).gpus] == ["nvidia"]


def test_the_threads_of_a_core_are_one_core_and_a_cpu_without_a_list_is_its_own(tmp_path):
    root = node_trees.laptop(tmp_path)
    assert topology.read_node(root, allowed={1, 5}).cores({5, 1}) == [[1, 5]]
    (tmp_path / "sys/devices/system/cpu/cpu5/topology/thread_siblings_list").unlink()
    assert topology.read_node(root, allowed={5}).cores({5}) == [[5]]


def test_gpus_whose_device_files_a_container_leaves_out_do_not_count(tmp_path):
    root = node_trees.perlmutter(tmp_path)
    assert len(topology.read_node(root).gpus) == 4
    node_trees.hide_nvidia_gpus(tmp_path, *range(4))
    assert topology.read_node(root).gpus == []

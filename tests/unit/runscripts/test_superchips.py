"""Ranks on nodes of GH200 and MI300A: the masks that CSCS and LLNL publish, and GPUs in partitions."""

import functools
from pathlib import Path

import node_trees
import pytest
from placements import choose_cores, placed, told
from pytorch_launch import topology
from pytorch_launch.devices import choose_devices
from pytorch_launch.topology import cpu_list

#: CSCS, "Slurm", "Testing CPU affinity": `srun -n8 -N2 -c72`.
CSCS_MASKS = ["0-71", "72-143", "144-215", "216-287"]
#: LLNL, mpibind, tutorials/cug24/module4.md: "the assigned GPUs are local to cores 0-23, 24-47, 48-71, and 72-95".
LLNL_MASKS = ["0-23,96-119", "24-47,120-143", "48-71,144-167", "72-95,168-191"]


@pytest.fixture(scope="module")
def gh200(tmp_path_factory):
    return node_trees.gh200(tmp_path_factory.mktemp("gh200"))


@pytest.fixture(scope="module")
def mi300a(tmp_path_factory):
    """A function that returns a node whose GPUs have that many partitions."""
    return functools.cache(lambda partitions=1: node_trees.mi300a(tmp_path_factory.mktemp("mi300a"), partitions))


def masks(placements):
    return [cpu_list(placement.cpus) for placement in placements]


def one_gpu_each(rank):
    """The variables of a rank of `srun --ntasks-per-node=4 --gpus-per-task=1`, without a device cgroup."""
    return told(str(rank), on_node=4)


@pytest.mark.parametrize("env", [None, one_gpu_each], ids=["all visible", "one visible"])
def test_ranks_on_gh200_get_the_masks_that_cscs_publishes(gh200, env):
    placements = placed(gh200, range(288), 4, env=env)
    assert masks(placements) == CSCS_MASKS
    assert [placement.threads for placement in placements] == [72] * 4
    assert [placement.numa for placement in placements] == [[0], [1], [2], [3]]
    assert not any(placement.warnings for placement in placements)


def test_the_masks_of_srun_on_gh200_stay(gh200):
    for rank, mask in enumerate(CSCS_MASKS):
        placement = placed(gh200, topology.parse_cpu_list(mask), 4, env=one_gpu_each, job_cpus=288)[rank]
        assert (placement.bind, cpu_list(placement.cpus), placement.threads) == (None, mask, 72)


def test_distances_of_nodes_with_cpus_are_found_among_those_of_all(gh200):
    distances = topology.Node(gh200).distances(1)
    assert [distances[number] for number in range(4)] == [32, 10, 32, 32]


def test_two_ranks_of_gh200_leave_the_cores_of_the_other_gpus(gh200):
    assert masks(placed(gh200, range(288), 2, env={"CUDA_VISIBLE_DEVICES": "1,3"})) == ["72-143", "216-287"]


@pytest.mark.parametrize("env", [None, one_gpu_each], ids=["all visible", "one visible"])
def test_ranks_on_mi300a_get_the_masks_that_llnl_publishes(mi300a, env):
    root = mi300a()
    placements = placed(root, range(192), 4, env=env)
    assert masks(placements) == LLNL_MASKS
    assert [placement.threads for placement in placements] == [24] * 4
    assert {gpu.pci: gpu.numa_node for gpu in topology.Node(root).gpus} == node_trees.MI300A


@pytest.mark.parametrize(
    ("partitions", "first", "cores"),
    [
        pytest.param(3, ["0-7,96-103", "8-15,104-111", "16-23,112-119", "24-31,120-127"], 8, id="TPX"),
        pytest.param(6, ["0-3,96-99", "4-7,100-103", "8-11,104-107", "12-15,108-111"], 4, id="CPX"),
    ],
)
@pytest.mark.parametrize("gives", ["all visible", "one visible", "one in a cgroup"])
def test_partitions_of_an_apu_share_its_cores(mi300a, partitions, first, cores, gives):
    root, count = mi300a(partitions), 4 * partitions
    if gives == "one in a cgroup":
        placements = [in_a_cgroup(root, rank, count) for rank in range(count)]
    else:
        env = None if gives == "all visible" else lambda rank: told(str(rank), on_node=count)
        placements = placed(root, range(192), count, env=env)
    assert masks(placements)[:4] == first
    assert [placement.threads for placement in placements] == [cores] * count
    assert sum(len(placement.cpus) for placement in placements) == 192
    assert len(set().union(*(placement.cpus for placement in placements))) == 192


def in_a_cgroup(root, rank, count):
    """The Placement of a rank that can only read its own GPU in the driver's topology."""
    others = [node_trees.amd_properties(Path(root), 4 + number) for number in range(count) if number != rank]
    for path in others:
        path.rename(path.with_name("hidden"))
    env = {**told(str(rank), on_node=count), "ROCR_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}
    devices = choose_devices(env, topology.Node(root), rank, count)
    placement = choose_cores(root, set(range(192)), rank, count, 192, None, devices)
    for path in others:
        path.with_name("hidden").rename(path)
    return placement

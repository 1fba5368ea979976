"""The cores of a rank, on nodes that are directories."""

import random

import node_trees
import pytest
from node_trees import JOB_CORES, JOB_THREADS, LUMI_G_MASKS
from placements import binds, choose_cores, placed, told
from pytorch_launch import topology
from pytorch_launch.devices import choose_devices


def one_gpu_each(rank):
    """The variables of a rank of srun --gpus-per-task=1 on a full node."""
    return told(str(rank))


@pytest.mark.parametrize("name", ["lumi", "frontier"])
@pytest.mark.parametrize("env", [None, one_gpu_each], ids=["all visible", "one visible"])
@pytest.mark.parametrize(
    ("allowed", "job_cpus"),
    [
        pytest.param(JOB_CORES, 56, id="a thread per core"),
        pytest.param(JOB_CORES, 112, id="a thread per core, Slurm counts both"),
        pytest.param(JOB_THREADS, 112, id="both threads"),
        pytest.param(JOB_THREADS, 56, id="both threads, Slurm counts cores"),
    ],
)
def test_ranks_on_lumi_g_get_the_published_masks(request, name, env, allowed, job_cpus):
    placements = placed(request.getfixturevalue(name), allowed, 8, env=env, job_cpus=job_cpus)
    first_threads = [sum(1 << cpu for cpu in placement.bind if cpu < 64) for placement in placements]
    assert ",".join(map(hex, first_threads)) == LUMI_G_MASKS
    for placement in placements:
        assert placement.bind == {cpu for cpu in allowed if cpu % 64 in {bound % 64 for bound in placement.bind}}
        assert placement.cpus == placement.bind
        assert placement.threads == 7
        assert placement.warnings == []
    assert [placement.numa for placement in placements] == [[3], [3], [1], [1], [0], [0], [2], [2]]


def test_63_cores_are_shared_nearly_equally(lumi):
    """LUMI-G before 2023, where jobs had all cores but the first."""
    placements = placed(lumi, range(1, 64), 8)
    assert [placement.threads for placement in placements] == [8, 8, 8, 8, 7, 8, 8, 8]
    assert binds(placements)[4:6] == ["1-7", "8-15"]


def test_each_rank_on_perlmutter_gets_the_numa_node_of_its_gpu(perlmutter):
    placements = placed(perlmutter, range(128), 4)
    assert binds(placements) == ["48-63,112-127", "32-47,96-111", "16-31,80-95", "0-15,64-79"]
    assert [placement.threads for placement in placements] == [16] * 4


def test_a_users_order_of_gpus_is_followed(perlmutter):
    placements = placed(perlmutter, range(128), 4, env={"CUDA_VISIBLE_DEVICES": "3,2,1,0"})
    assert binds(placements) == ["0-15,64-79", "16-31,80-95", "32-47,96-111", "48-63,112-127"]


def test_numa_nodes_without_a_gpu_lend_their_cores_to_a_neighbour(dgx):
    placements = placed(dgx, range(128), 8)
    assert binds(placements) == [
        "32-39,48-55",
        "40-47,56-63",
        "0-7,16-23",
        "8-15,24-31",
        "96-103,112-119",
        "104-111,120-127",
        "64-71,80-87",
        "72-79,88-95",
    ]
    assert placements[0].numa == [2, 3]
    assert [placement.threads for placement in placements] == [16] * 8


def test_the_nearest_neighbour_is_on_the_same_socket(dgx):
    placements = placed(dgx, range(128), 2, env={"CUDA_VISIBLE_DEVICES": "2,6"})
    # without 48-63 and 112-127, which are near GPUs that no rank uses
    assert binds(placements) == ["0-47", "64-111"]


def test_the_gpus_of_others_keep_their_numa_nodes_cores(dgx):
    placements = placed(dgx, range(128), 2, env={"CUDA_VISIBLE_DEVICES": "2,3"})
    assert binds(placements) == ["0-7,16-23,32-39,64-71,96-103", "8-15,24-31,40-47,72-79,104-111"]


def test_a_lender_prefers_who_got_fewest(tmp_path):
    root = node_trees.node(
        tmp_path, cores=24, threads=1, numa_nodes=6, vendor="nvidia", gpus={"0000:01:00.0": 1, "0000:02:00.0": 4}
    )
    assert binds(placed(root, range(24), 2)) == ["0-7,12-15", "8-11,16-23"]


def test_a_part_of_a_node_is_shared_like_a_node(tmp_path):
    """LUMI's small-g: two GPUs, 14 cores, and a device cgroup that hides the rest."""
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    allowed = {cpu for cpu in JOB_CORES if 16 <= cpu < 32}
    assert binds(placed(root, allowed, 2)) == ["17-23", "25-31"]


def test_a_rank_that_does_not_know_the_gpus_of_the_others_gets_the_numa_node_of_its_own(dgx):
    allowed = range(112, 128)
    for placement in placed(dgx, allowed, 2, env=lambda rank: told(str(4 + rank), on_node=2)):
        assert placement.bind == set(allowed)
        assert placement.threads == 8
    (first, _) = placed(dgx, range(80, 128), 2, env=lambda rank: told(("4,5", "6,7")[rank], on_node=4))
    assert first.bind == set(allowed)
    assert first.threads == 16


def test_cores_far_from_the_gpus_are_shared_like_any(perlmutter):
    placements = placed(perlmutter, range(16), 2)
    assert binds(placements) == ["0-7", "8-15"]


def test_a_gpu_without_a_core_of_its_own_makes_all_ranks_share_like_any(perlmutter):
    allowed = [0, 1, 2, 3, 16, 32]  # none near GPU 0
    assert binds(placed(perlmutter, allowed, 4)) == ["0", "1-2", "3", "16,32"]


def test_one_core_for_two_gpus_makes_all_ranks_share_like_any(lumi):
    allowed = {49, 113, 57, 121, 17, 81, 25, 89, 1, 65, 9, 73, 33, 97}  # one core near GPUs 6 and 7
    shares = [placement.bind for placement in placed(lumi, allowed, 7)]
    assert all(shares)
    assert disjoint(shares)


def test_where_the_firmware_reports_nothing_ranks_share_in_order(virtual_machine):
    assert binds(placed(virtual_machine, range(8), 2)) == ["0-3", "4-7"]


def test_ranks_without_gpus_share_in_order(laptop, dgx):
    assert binds(placed(laptop, range(8), 2)) == ["0-1,4-5", "2-3,6-7"]
    assert binds(placed(dgx, range(256), 3, gpus=False)) == ["0-41,128-169", "42-84,170-212", "85-127,213-255"]
    assert [placement.threads for placement in placed(laptop, range(8), 3)] == [1, 1, 2]


def test_a_node_that_shows_nothing_is_shared_too(tmp_path):
    placements = placed(str(tmp_path), range(4), 2)
    assert binds(placements) == ["0-1", "2-3"]
    assert placements[0].numa == []


def test_ranks_on_one_gpu_share_its_cores(perlmutter):
    placements = placed(perlmutter, range(128), 6)
    assert binds(placements) == [
        "48-55,112-119",
        "32-39,96-103",
        "16-31,80-95",
        "0-15,64-79",
        "56-63,120-127",
        "40-47,104-111",
    ]


def test_a_rank_with_several_gpus_of_its_own_gets_the_cores_of_all(lumi):
    placements = placed(lumi, JOB_CORES, 4, env=lambda rank: told(f"{2 * rank},{2 * rank + 1}"))
    assert binds(placements) == ["49-55,57-63", "17-23,25-31", "1-7,9-15", "33-39,41-47"]


def test_a_rank_whose_gpu_is_not_known_is_not_bound(dgx):
    env = {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    for placement in placed(dgx, range(256), 4, env=env):
        assert placement.bind is None
        assert placement.cpus == set(range(256))
        assert placement.threads == 32


def disjoint(sets):
    """Whether no CPU is in two of the sets."""
    return sum(map(len, sets)) == len(set().union(*sets))


def random_node(choose, directory):
    """A small node of any shape; returns its root, its CPUs by core, and its number of GPUs."""
    threads, numa_nodes, size = choose.choice([1, 2, 4]), choose.choice([1, 2, 4]), choose.randint(1, 6)
    cores = numa_nodes * size
    vendor = choose.choice(["amd", "nvidia"])
    gpus = {f"0000:{bus:02x}:00.0": choose.randrange(numa_nodes) for bus in range(choose.randint(0, 6))}
    root = node_trees.node(directory, cores=cores, threads=threads, numa_nodes=numa_nodes, vendor=vendor, gpus=gpus)
    return root, [{core + cores * thread for thread in range(threads)} for core in range(cores)], len(gpus)


def test_shares_are_disjoint_complete_and_fair_on_nodes_of_any_shape(tmp_path):
    choose_at = random.Random(20250827)  # noqa: S311  (a repeatable test, no secret)
    crowded = by_gpu = 0
    for number in range(40):
        root, cores, gpus = random_node(choose_at, tmp_path / str(number))
        for _ in range(10):
            allowed = set().union(*choose_at.sample(cores, choose_at.randint(1, len(cores))))
            if choose_at.random() < 0.3:  # not all threads of a core
                allowed = set(choose_at.sample(sorted(allowed), choose_at.randint(1, len(allowed))))
            kept = sum(bool(core & allowed) for core in cores)
            size = choose_at.randint(2, 12)
            for use_gpus in (False, True):
                placements = placed(root, allowed, size, gpus=use_gpus)
                shares = [placement.bind for placement in placements]
                assert all(share and share <= allowed for share in shares)
                for share in shares:
                    assert all(core & allowed <= share or not core & share for core in cores)
                if any(placement.warnings for placement in placements):
                    crowded += 1
                    continue
                assert disjoint(shares)
                sizes = [sum(bool(core & share) for core in cores) for share in shares]
                assert sizes == [placement.threads for placement in placements]
                if not use_gpus or size >= gpus:
                    assert set().union(*shares) == allowed
                if not use_gpus:
                    assert kept // size == min(sizes)
                    assert max(sizes) - min(sizes) <= 1
                by_gpu += use_gpus
    assert crowded > 100
    assert by_gpu > 50


@pytest.mark.parametrize(
    ("name", "allowed", "size", "most"),
    [
        # 12 nodes of the driver and their directory, 8 GPUs, 4 NUMA nodes and their list, smt/active, a thread list per
        # core of one NUMA node
        pytest.param("lumi", JOB_THREADS, 8, 13 + 8 + 5 + 1 + 15, id="LUMI-G"),
        pytest.param("perlmutter", range(128), 4, 1 + 4 + 5 + 1 + 17, id="Perlmutter"),
        # the directories of the GPUs and of their driver, 8 GPUs, 8 NUMA nodes and their list, 4 tables of distances,
        # the cores of two NUMA nodes
        pytest.param("dgx", range(256), 8, 2 + 8 + 9 + 4 + 1 + 33, id="DGX A100"),
        pytest.param("lumi", range(1, 8), 8, 13 + 1 + 1 + 7, id="a mask of one's own"),
        pytest.param("virtual_machine", range(8), 2, 1 + 1 + 2 + 1, id="no hardware threads"),
    ],
)
def test_few_files_and_directories_are_read(request, monkeypatch, name, allowed, size, most):
    root = request.getfixturevalue(name)
    paths = []
    read, names = topology.read, topology.names
    monkeypatch.setattr(topology, "read", lambda path: paths.append(path) or read(path))
    monkeypatch.setattr(topology, "names", lambda path: paths.append(path) or names(path))
    job_cpus = 56 if name == "lumi" and len(allowed) == 7 else len(allowed)
    node = topology.Node(root, allowed=set(allowed))
    choose_cores(root, (), size - 1, size, job_cpus, None, choose_devices({}, node, size - 1, size), node=node)
    assert len(paths) <= most

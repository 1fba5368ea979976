"""The cores of a rank, on nodes that are directories."""

import functools
import random
from pathlib import Path

import node_trees
import pytest
from node_trees import JOB_CORES, JOB_THREADS, LUMI_G_MASKS
from placements import binds, choose_cores, placed, told
from pytorch_launch import topology
from pytorch_launch.devices import Devices, choose_devices
from pytorch_launch.topology import cpu_list, parse_cpu_list


def one_gpu_each(rank):
    """The variables of a rank of srun --gpus-per-task=1 on a full node."""
    return told(str(rank))


def one_of_four(rank):
    return told(str(rank), on_node=4)


def two_gpus_each(rank):
    return told(f"{2 * rank},{2 * rank + 1}")


def disjoint(sets):
    """Whether no CPU is in two of the sets."""
    return sum(map(len, sets)) == len(set().union(*sets))


# Masks that sites publish


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
        assert (placement.cpus, placement.threads, placement.warnings) == (placement.bind, 7, [])
    assert [placement.numa for placement in placements] == [[3], [3], [1], [1], [0], [0], [2], [2]]


@pytest.fixture(scope="module")
def mi300a(tmp_path_factory):
    """A function that returns a node whose GPUs have that many partitions."""
    return functools.cache(
        lambda partitions=1: node_trees.mi300a(tmp_path_factory.mktemp("mi300a"), partitions=partitions)
    )


#: CSCS, "Slurm", "Testing CPU affinity": `srun -n8 -N2 -c72`.
CSCS_MASKS = ["0-71", "72-143", "144-215", "216-287"]
#: LLNL, mpibind, tutorials/cug24/module4.md: "the assigned GPUs are local to cores 0-23, 24-47, 48-71, and 72-95".
LLNL_MASKS = ["0-23,96-119", "24-47,120-143", "48-71,144-167", "72-95,168-191"]


@pytest.mark.parametrize("env", [None, one_of_four], ids=["all visible", "one visible"])
def test_ranks_of_superchips_get_the_masks_that_cscs_and_llnl_publish(gh200, mi300a, env):
    for root, cpus, masks, threads in ((gh200, 288, CSCS_MASKS, 72), (mi300a(), 192, LLNL_MASKS, 24)):
        placements = placed(root, range(cpus), 4, env=env)
        assert [cpu_list(placement.cpus) for placement in placements] == masks
        assert [(placement.threads, placement.warnings) for placement in placements] == [(threads, [])] * 4
        assert [placement.numa for placement in placements] == [[0], [1], [2], [3]]
    for rank, mask in enumerate(CSCS_MASKS):  # those of srun stay
        placement = placed(gh200, parse_cpu_list(mask), 4, env=env, job_cpus=288)[rank]
        assert (placement.bind, cpu_list(placement.cpus), placement.threads) == (None, mask, 72)


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
    assert [cpu_list(placement.cpus) for placement in placements][:4] == first
    assert [placement.threads for placement in placements] == [cores] * count
    assert disjoint([placement.cpus for placement in placements])
    assert sum(len(placement.cpus) for placement in placements) == 192


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


# Shares

OF_DGX = "32-39,48-55 40-47,56-63 0-7,16-23 8-15,24-31 96-103,112-119 104-111,120-127 64-71,80-87 72-79,88-95"
OF_PERLMUTTER = "48-63,112-127 32-47,96-111 16-31,80-95 0-15,64-79"
REVERSED = " ".join(reversed(OF_PERLMUTTER.split()))
ON_ONE_GPU = "48-55,112-119 32-39,96-103 16-31,80-95 0-15,64-79 56-63,120-127 40-47,104-111"
ON_DGX = "0-7,16-23,32-39,64-71,96-103 8-15,24-31,40-47,72-79,104-111"
ONE_CORE_EACH = "49,113 57,121 17,81 25,89 1,65 9,73 33,97"
SHARES = [
    # LUMI-G before 2023, where jobs had all cores but the first
    ("lumi", range(1, 64), 8, {}, "48-55 56-63 16-23 24-31 1-7 8-15 32-39 40-47", [8, 8, 8, 8, 7, 8, 8, 8]),
    # the NUMA node of the GPU, in the user's order
    ("perlmutter", range(128), 4, {}, OF_PERLMUTTER, [16] * 4),
    ("perlmutter", range(128), 4, {"env": {"CUDA_VISIBLE_DEVICES": "3,2,1,0"}}, REVERSED, None),
    # NUMA nodes without a GPU lend their cores, the nearest is on the same socket, and those of other GPUs keep theirs
    ("dgx", range(128), 8, {}, OF_DGX, [16] * 8),
    ("dgx", range(128), 2, {"env": {"CUDA_VISIBLE_DEVICES": "2,6"}}, "0-47 64-111", None),
    ("dgx", range(128), 2, {"env": {"CUDA_VISIBLE_DEVICES": "2,3"}}, ON_DGX, None),
    ("gh200", range(288), 2, {"env": {"CUDA_VISIBLE_DEVICES": "1,3"}}, "72-143 216-287", None),
    # far from the GPUs, or without a core near each, ranks share in order; so without GPUs, or where nothing is known
    ("perlmutter", range(16), 2, {}, "0-7 8-15", None),
    ("perlmutter", [0, 1, 2, 3, 16, 32], 4, {}, "0 1-2 3 16,32", None),
    ("virtual_machine", range(8), 2, {}, "0-3 4-7", None),
    ("laptop", range(8), 2, {}, "0-1,4-5 2-3,6-7", None),
    ("laptop", range(8), 3, {}, "0,4 1,5 2-3,6-7", [1, 1, 2]),
    ("dgx", range(256), 3, {"gpus": False}, "0-41,128-169 42-84,170-212 85-127,213-255", None),
    # one core near two GPUs
    ("lumi", {49, 113, 57, 121, 17, 81, 25, 89, 1, 65, 9, 73, 33, 97}, 7, {}, ONE_CORE_EACH, None),
    # ranks on one GPU, and a rank with several of its own
    ("perlmutter", range(128), 6, {}, ON_ONE_GPU, None),
    ("lumi", JOB_CORES, 4, {"env": two_gpus_each}, "49-55,57-63 17-23,25-31 1-7,9-15 33-39,41-47", None),
    # the CPUs that there are belong to all, also if Slurm is told of more: several nodes on one machine
    ("laptop", range(8), 2, {"job_cpus": 64}, "0-1,4-5 2-3,6-7", None),
    # two ranks that share four cores, and two that have four each, differ in what they asked for
    ("laptop", range(4), 2, {"job_cpus": 8, "cpus_per_task": 2}, "0-1 2-3", None),
    ("laptop", range(4), 2, {"job_cpus": 8, "cpus_per_task": 4}, "None None", None),
    ("laptop", range(4), 2, {"job_cpus": 8}, "None None", None),
    # what was asked for is not exceeded
    ("lumi", JOB_CORES, 8, {"cpus_per_task": 4}, "49-55 57-63 17-23 25-31 1-7 9-15 33-39 41-47", [4] * 8),
    # a rank whose GPU is not known is not bound
    ("dgx", range(256), 4, {"env": {"CUDA_VISIBLE_DEVICES": "MIG-1"}}, "None None None None", [32] * 4),
]


@pytest.mark.parametrize(("name", "allowed", "size", "options", "binding", "threads"), SHARES)
def test_ranks_share_the_cores_near_their_gpus(request, name, allowed, size, options, binding, threads):
    placements = placed(request.getfixturevalue(name), allowed, size, **options)
    assert [str(each) for each in binds(placements)] == binding.split()
    assert threads in (None, [placement.threads for placement in placements])


def test_a_lender_prefers_who_got_fewest(tmp_path):
    gpus = {"0000:01:00.0": 1, "0000:02:00.0": 4}
    root = node_trees.node(tmp_path, cores=24, threads=1, numa_nodes=6, vendor="nvidia", gpus=gpus)
    assert binds(placed(root, range(24), 2)) == ["0-7,12-15", "8-11,16-23"]
    for number in range(6):
        (tmp_path / f"sys/devices/system/node/node{number}/distance").unlink()
    assert binds(placed(root, range(24), 2)) == ["0-7,12-15", "8-11,16-23"]  # without a table all are equally far


def test_a_part_of_a_node_is_shared_like_a_node(tmp_path):
    """LUMI's small-g: two GPUs, 14 cores, and a device cgroup that hides the rest."""
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    assert binds(placed(root, {cpu for cpu in JOB_CORES if 16 <= cpu < 32}, 2)) == ["17-23", "25-31"]


def test_a_rank_that_does_not_know_the_gpus_of_the_others_gets_the_numa_node_of_its_own(dgx):
    allowed = range(112, 128)
    for placement in placed(dgx, allowed, 2, env=lambda rank: told(str(4 + rank), on_node=2)):
        assert (placement.bind, placement.threads) == (set(allowed), 8)
    (first, _) = placed(dgx, range(80, 128), 2, env=lambda rank: told(("4,5", "6,7")[rank], on_node=4))
    assert (first.bind, first.threads) == (set(allowed), 16)


def test_a_node_that_shows_nothing_is_shared_too(tmp_path):
    placements = placed(str(tmp_path), range(4), 2)
    assert binds(placements) == ["0-1", "2-3"]
    assert placements[0].numa == []


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


# Masks that stay

BOTH_THREADS = [*range(1, 8), *range(65, 72)]
KEPT = [
    # masks of a rank's own: seven of 56 CPUs, where Slurm may count both threads of each core or one
    ("lumi", range(1, 8), 8, {"job_cpus": 56}, 7),
    ("lumi", range(1, 8), 8, {"job_cpus": 112, "cpus_per_task": 7}, 7),
    ("lumi", BOTH_THREADS, 8, {"job_cpus": 112}, 7),
    ("lumi", BOTH_THREADS, 8, {"job_cpus": 56, "cpus_per_task": 7}, 7),
    ("lumi", BOTH_THREADS, 8, {"job_cpus": 112, "cpus_per_task": 14}, 7),
    ("lumi", [3], 8, {"job_cpus": 8}, 1),
    ("lumi", [3], 8, {"job_cpus": 56}, 1),
    ("lumi", range(32), 2, {"job_cpus": 64}, 32),
    ("lumi", range(32), 2, {"job_cpus": 64, "cpus_per_task": 32}, 32),
    # masks that some ranks share: four bound to each socket; wider than the job, without cgroups
    ("dgx", [*range(64), *range(128, 192)], 8, {"job_cpus": 256}, 16),
    ("dgx", range(128), 4, {"job_cpus": 64}, 16),
    ("dgx", range(256), 4, {"job_cpus": 64}, 8),
    ("dgx", range(256), 1, {"job_cpus": 64}, 32),
    ("dgx", range(4), 4, {"job_cpus": 2}, 1),
    # a rank alone
    ("lumi", JOB_THREADS, 1, {}, 56),
    ("lumi", JOB_THREADS, 1, {"job_cpus": 56, "cpus_per_task": 56}, 56),
]


@pytest.mark.parametrize(("name", "allowed", "size", "options", "threads"), KEPT)
def test_a_mask_that_not_all_ranks_have_stays_and_its_cores_are_divided(request, name, allowed, size, options, threads):
    for placement in placed(request.getfixturevalue(name), allowed, size, **options):
        assert (placement.bind, placement.cpus) == (None, set(allowed))
        assert (placement.threads, placement.warnings) == (threads, [])


@pytest.mark.parametrize("job_cpus", [1, 2])
def test_ranks_crowded_on_one_core_are_told_the_remedy(lumi, job_cpus):
    """torchrun under srun without -c, which OLCF found to be far slower ("PyTorch on Frontier")."""
    placements = placed(lumi, [1, 65], 8, job_cpus=job_cpus)
    assert binds(placements) == ["1,65"] * 8
    for placement in placements:
        (warning,) = map(str, placement.warnings)
        assert placement.threads == 1 and warning.startswith("8 ranks share 1 core on this node, CPUs 1,65,")
        assert warning.endswith("take turns on them. Start at most 1 rank per node, or request more cores for the job")


def test_more_ranks_than_cores_take_turns(laptop, dgx):
    placements = placed(laptop, range(4), 6)
    assert binds(placements) == ["0", "1", "2", "3", "0", "1"]
    assert "6 ranks share 4 cores" in str(placements[0].warnings[0])
    (placement, *_) = placed(dgx, range(2), 8, job_cpus=6)
    assert (placement.bind, placement.threads) == (None, 1)
    assert "3 ranks share 2 cores" in str(placement.warnings[0])


def of_step(root, masks, rank, allowed, job_cpus=8):
    """The Placement of a task of a Slurm step with --cpu-bind=map_cpu or mask_cpu."""
    return choose_cores(root, allowed, rank, len(masks), job_cpus, None, Devices(), masks=masks)


def test_masks_of_a_step_that_overlap_are_kept_or_warned_of(laptop):
    for rank in range(2):  # srun --cpu-bind=map_cpu:0,0
        placement = of_step(laptop, [{0}, {0}], rank, {0})
        assert (placement.cpus, placement.threads) == ({0}, 1)
        (warning,) = map(str, placement.warnings)
        assert warning == "2 ranks share 1 core on this node, CPUs 0, and take turns on them. Give each rank more"
    masks = [{0, 1}, {0}]  # srun --cpu-bind=mask_cpu:0x3,0x1, where the first is as wide as a job of two CPUs
    for rank, allowed in enumerate(masks):
        placement = of_step(laptop, masks, rank, allowed, job_cpus=2)
        assert (placement.bind, placement.cpus, placement.threads) == (None, allowed, 1)
        assert placement.warnings == []
    masks = [{0, 1, 2, 3}] * 2  # equal ones are cut
    assert binds([of_step(laptop, masks, rank, {0, 1, 2, 3}) for rank in range(2)]) == ["0-1", "2-3"]
    assert of_step(laptop, [{7}, {6}], 0, {0, 1}).bind is None  # those of another step are ignored


def without_slurm(root, allowed, rank, size, launcher=None):
    return choose_cores(root, allowed, rank, size, None, None, Devices(), launcher=launcher)


def test_without_slurm_all_cpus_are_the_jobs_or_those_of_mpirun(laptop):
    """Of mpirun in the cpuset of a batch system or a container, with --bind-to none."""
    assert binds([without_slurm(laptop, set(range(8)), rank, 2) for rank in range(2)]) == ["0-1,4-5", "2-3,6-7"]
    assert without_slurm(laptop, {0}, 0, 2).bind is None
    ranks = [without_slurm(laptop, {2, 3}, rank, 4, launcher={2, 3}) for rank in range(4)]
    assert binds(ranks) == ["2", "3", "2", "3"]
    fault = "4 ranks share 2 cores on this node, CPUs 2-3, and take turns on them. Start at most 2 ranks"
    assert str(ranks[0].warnings[0]).startswith(fault)
    for rank in range(2):
        own = without_slurm(laptop, {2 + rank}, rank, 2, launcher={2, 3})
        assert (own.bind, own.warnings) == (None, [])

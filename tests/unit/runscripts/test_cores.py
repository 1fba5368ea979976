"""The cores of a rank, on nodes that are directories."""

import functools

import node_trees
import pytest
from node_trees import JOB_CORES, JOB_THREADS, LUMI_G_MASKS
from placements import binds, choose_cores, choose_devices, placed, told
from pytorch_launch.devices import NO_DEVICES
from pytorch_launch.topology import cpu_list, parse_cpu_list
from tables import name, table
from variables import variables


def one_gpu_each(rank):
    """The variables of a rank of srun --gpus-per-task=1 on a full node."""
    return told(str(rank))


def one_of_four(rank):
    return told(str(rank), on_node=4)


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
@pytest.mark.parametrize("gives", ["all visible", "one visible"])
def test_partitions_of_an_apu_share_its_cores(mi300a, partitions, first, cores, gives):
    root, count = mi300a(partitions), 4 * partitions
    env = None if gives == "all visible" else lambda rank: told(str(rank), on_node=count)
    placements = placed(root, range(192), count, env=env)
    assert [cpu_list(placement.cpus) for placement in placements][:4] == first
    assert [placement.threads for placement in placements] == [cores] * count
    assert disjoint([placement.cpus for placement in placements])
    assert sum(len(placement.cpus) for placement in placements) == 192


# Shares

#: Where no CPUs of the job are given, it has those that are allowed.
SHARES = """
node       | allowed | ranks | environment             | job | per task | binding | threads
# LUMI-G before 2023, where jobs had all cores but the first
lumi       | 1-63    | 8 |                             |    |   | 48-55 56-63 16-23 24-31 1-7 8-15 32-39 40-47 | 8 8 8 8 7 8 8 8
# the NUMA node of the GPU, in the user's order
perlmutter | 0-127   | 4 |                             |    |   | 48-63,112-127 32-47,96-111 16-31,80-95 0-15,64-79 | 16 16 16 16
perlmutter | 0-127   | 4 | CUDA_VISIBLE_DEVICES=3,2,1,0 |   |   | 0-15,64-79 16-31,80-95 32-47,96-111 48-63,112-127 |
# NUMA nodes without a GPU lend their cores, the nearest is on the same socket, and those of other GPUs keep theirs
dgx        | 0-127   | 8 |                             |    |   | {dgx} | 16 16 16 16 16 16 16 16
dgx        | 0-127   | 2 | CUDA_VISIBLE_DEVICES=2,6    |    |   | 0-47 64-111 |
dgx        | 0-127   | 2 | CUDA_VISIBLE_DEVICES=2,3    |    |   | 0-7,16-23,32-39,64-71,96-103 8-15,24-31,40-47,72-79,104-111 |
gh200      | 0-287   | 2 | CUDA_VISIBLE_DEVICES=1,3    |    |   | 72-143 216-287 |
# far from the GPUs, or without a core near each, ranks share in order; so where nothing is known, or without GPUs
perlmutter | 0-15    | 2 |                             |    |   | 0-7 8-15 |
perlmutter | 0-3,16,32 | 4 |                           |    |   | 0 1-2 3 16,32 |
virtual_machine | 0-7 | 2 |                            |    |   | 0-3 4-7 |
laptop     | 0-7     | 2 |                             |    |   | 0-1,4-5 2-3,6-7 |
laptop     | 0-7     | 3 |                             |    |   | 0,4 1,5 2-3,6-7 | 1 1 2
# one core near two GPUs
lumi       | 49,113,57,121,17,81,25,89,1,65,9,73,33,97 | 7 | |  |  | 49,113 57,121 17,81 25,89 1,65 9,73 33,97 |
# ranks on one GPU
perlmutter | 0-127   | 6 |                             |    |   | {on_one_gpu} |
# the CPUs that there are belong to all, also if Slurm is told of more: several nodes on one machine
laptop     | 0-7     | 2 |                             | 64 |   | 0-1,4-5 2-3,6-7 |
# two ranks that share four cores, and two that have four each, differ in what they asked for
laptop     | 0-3     | 2 |                             | 8  | 2 | 0-1 2-3 |
laptop     | 0-3     | 2 |                             | 8  | 4 | None None |
laptop     | 0-3     | 2 |                             | 8  |   | None None |
# what was asked for is not exceeded
lumi       | {job}   | 8 |                             |    | 4 | {lumi} | 4 4 4 4 4 4 4 4
# a rank whose GPU is not known is not bound
dgx        | 0-255   | 4 | CUDA_VISIBLE_DEVICES=MIG-1  |    |   | None None None None | 32 32 32 32
"""  # noqa: E501
LISTS = {
    "dgx": "32-39,48-55 40-47,56-63 0-7,16-23 8-15,24-31 96-103,112-119 104-111,120-127 64-71,80-87 72-79,88-95",
    "lumi": "49-55 57-63 17-23 25-31 1-7 9-15 33-39 41-47",
    "on_one_gpu": "48-55,112-119 32-39,96-103 16-31,80-95 0-15,64-79 56-63,120-127 40-47,104-111",
    "job": cpu_list(JOB_CORES),
}


def number(text):
    """A number, None for an empty text."""
    return int(text) if text else None


@pytest.mark.parametrize("row", table(SHARES), ids=name)
def test_ranks_share_the_cores_near_their_gpus(request, row):
    allowed = parse_cpu_list(row["allowed"].format(**LISTS))
    placements = placed(
        request.getfixturevalue(row["node"]),
        allowed,
        int(row["ranks"]),
        env=variables(row["environment"]),
        job_cpus=number(row["job"]),
        cpus_per_task=number(row["per task"]),
    )
    assert [str(each) for each in binds(placements)] == row["binding"].format(**LISTS).split()
    threads = [str(placement.threads) for placement in placements]
    assert row["threads"].split() in ([], threads)


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


# Masks that stay

KEPT = """
node | allowed       | ranks | job | per task | threads
# masks of a rank's own: seven of 56 CPUs, where Slurm may count both threads of each core or one
lumi | 1-7           | 8 | 56  |    | 7
lumi | 1-7           | 8 | 112 | 7  | 7
lumi | 1-7,65-71     | 8 | 112 |    | 7
lumi | 1-7,65-71     | 8 | 56  | 7  | 7
lumi | 1-7,65-71     | 8 | 112 | 14 | 7
lumi | 3             | 8 | 8   |    | 1
lumi | 3             | 8 | 56  |    | 1
lumi | 0-31          | 2 | 64  |    | 32
lumi | 0-31          | 2 | 64  | 32 | 32
# masks that some ranks share: four bound to each socket; wider than the job, without cgroups
dgx  | 0-63,128-191  | 8 | 256 |    | 16
dgx  | 0-127         | 4 | 64  |    | 16
dgx  | 0-255         | 4 | 64  |    | 8
dgx  | 0-255         | 1 | 64  |    | 32
dgx  | 0-3           | 4 | 2   |    | 1
# a rank alone
lumi | {job},{threads} | 1 |   |    | 56
lumi | {job},{threads} | 1 | 56 | 56 | 56
"""


@pytest.mark.parametrize("row", table(KEPT), ids=name)
def test_a_mask_that_not_all_ranks_have_stays_and_its_cores_are_divided(request, row):
    text = row["allowed"].format(job=cpu_list(JOB_CORES), threads=cpu_list(JOB_THREADS - JOB_CORES))
    allowed, job_cpus, per_task = parse_cpu_list(text), number(row["job"]), number(row["per task"])
    root = request.getfixturevalue(row["node"])
    for placement in placed(root, allowed, int(row["ranks"]), job_cpus=job_cpus, cpus_per_task=per_task):
        assert (placement.bind, placement.cpus) == (None, allowed)
        assert (placement.threads, placement.warnings) == (int(row["threads"]), [])


#: What mpirun chose for the first of some ranks, its own CPUs, and the end of the fault.
UNASKED = """
node       | mask      | ranks | of mpirun | fault
# Open MPI 4 and 5: one core for one or two ranks, otherwise a NUMA node or a socket each
laptop     | 0,4       | 1     | 0-7       | binds this rank to CPUs 0,4, one core
laptop     | 0,4       | 2     | 0-7       | binds this rank to CPUs 0,4, one core
lumi       | 0,64      | 1     | 0-127     | binds this rank to CPUs 0,64, and its GPU is near CPUs 48-63,112-127
lumi       | 0-15,64-79 | 4    | 0-127     | and its GPU is near CPUs 48-63,112-127
dgx        | 0-63,128-191 | 2  | 0-255     |
gh200      | 0-71      | 4     | 0-287     |
gh200      | 0         | 4     | 0-287     | binds this rank to CPUs 0, one core
# there are no more, or no GPU is near any CPU
laptop     | 0,4       | 4     | 0-7       |
laptop     | 0,4       | 1     | 0,4       |
virtual_machine | 0-3  | 2     | 0-7       |
"""


@pytest.mark.parametrize("row", table(UNASKED), ids=name)
def test_a_mask_that_mpirun_chose_by_itself_is_kept_and_worth_a_warning(request, row):
    root, size = request.getfixturevalue(row["node"]), int(row["ranks"])
    devices = choose_devices({}, root, 0, size)
    masks = {"allowed": parse_cpu_list(row["mask"]), "launcher": parse_cpu_list(row["of mpirun"])}
    ranks = {"rank": 0, "size": size, "job_cpus": None, "cpus_per_task": None, "chosen": devices}
    placement = choose_cores(root, **masks, **ranks, binds_by_default=True)
    assert (placement.bind, placement.cpus) == (None, masks["allowed"])
    texts = [str(problem) for problem in placement.warnings]
    assert len(texts) == bool(row["fault"])
    assert not texts or f"{row['fault']}. Give each rank more" in texts[0]
    assert choose_cores(root, **masks, **ranks).warnings == []  # the user asked for it


@pytest.mark.parametrize("job_cpus", [1, 2])
def test_ranks_crowded_on_one_core_are_told_the_remedy(lumi, job_cpus):
    """torchrun under srun without -c, which OLCF found to be far slower ("PyTorch on Frontier")."""
    placements = placed(lumi, [1, 65], 8, job_cpus=job_cpus)
    assert binds(placements) == ["1,65"] * 8
    for placement in placements:
        (warning,) = map(str, placement.warnings)
        assert placement.threads == 1 and warning.startswith("8 ranks share the cores of CPUs 1,65 on this node.")
        assert warning.endswith(" on this node. Start fewer ranks per node, or request more cores for the job")


def of_step(root, masks, rank, allowed, job_cpus=8):
    """The Placement of a task of a Slurm step with --cpu-bind=map_cpu or mask_cpu."""
    return choose_cores(root, allowed, rank, len(masks), job_cpus, None, NO_DEVICES, masks=masks)


def test_masks_of_a_step_that_overlap_are_kept_or_warned_of(laptop):
    for rank in range(2):  # srun --cpu-bind=map_cpu:0,0
        placement = of_step(laptop, [{0}, {0}], rank, {0})
        assert (placement.cpus, placement.threads) == ({0}, 1)
        (warning,) = map(str, placement.warnings)
        assert warning == "2 ranks share the cores of CPUs 0 on this node. Give each rank more"
    masks = [{0, 1}, {0}]  # srun --cpu-bind=mask_cpu:0x3,0x1, where the first is as wide as a job of two CPUs
    for rank, allowed in enumerate(masks):
        placement = of_step(laptop, masks, rank, allowed, job_cpus=2)
        assert (placement.bind, placement.cpus, placement.threads) == (None, allowed, 1)
        assert placement.warnings == []
    masks = [{0, 1, 2, 3}] * 2  # equal ones are cut
    assert binds([of_step(laptop, masks, rank, {0, 1, 2, 3}) for rank in range(2)]) == ["0-1", "2-3"]
    assert of_step(laptop, [{7}, {6}], 0, {0, 1}).bind is None  # those of another step are ignored


def without_slurm(root, allowed, rank, size, launcher=None):
    return choose_cores(root, allowed, rank, size, None, None, NO_DEVICES, launcher=launcher)


def test_without_slurm_all_cpus_are_the_jobs_or_those_of_mpirun(laptop):
    """Of mpirun in the cpuset of a batch system or a container, with --bind-to none."""
    assert binds([without_slurm(laptop, set(range(8)), rank, 2) for rank in range(2)]) == ["0-1,4-5", "2-3,6-7"]
    assert without_slurm(laptop, {0}, 0, 2).bind is None
    ranks = [without_slurm(laptop, {2, 3}, rank, 4, launcher={2, 3}) for rank in range(4)]
    assert binds(ranks) == ["2", "3", "2", "3"]
    fault = "4 ranks share the cores of CPUs 2-3 on this node. Start fewer ranks"
    assert str(ranks[0].warnings[0]).startswith(fault)
    for rank in range(2):
        own = without_slurm(laptop, {2 + rank}, rank, 2, launcher={2, 3})
        assert (own.bind, own.warnings) == (None, [])

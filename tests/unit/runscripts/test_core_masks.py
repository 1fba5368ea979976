"""Masks that stay, threads per rank, and ranks that are crowded."""

import pytest
from node_trees import JOB_CORES, JOB_THREADS
from placements import binds, choose_cores, placed
from pytorch_launch.devices import Devices


def test_a_rank_alone_is_not_bound(lumi):
    (placement,) = placed(lumi, JOB_THREADS, 1)
    assert (placement.bind, placement.cpus, placement.threads) == (None, JOB_THREADS, 56)
    assert placement.numa == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("allowed", "size", "job_cpus", "cpus_per_task", "threads"),
    [
        pytest.param(range(1, 8), 8, 56, None, 7, id="seven of 56"),
        pytest.param(range(1, 8), 8, 112, 7, 7, id="a thread per core, Slurm counts both"),
        pytest.param([*range(1, 8), *range(65, 72)], 8, 112, None, 7, id="both threads"),
        pytest.param([*range(1, 8), *range(65, 72)], 8, 56, 7, 7, id="both threads, Slurm counts cores"),
        pytest.param([*range(1, 8), *range(65, 72)], 8, 112, 14, 7, id="both threads, asked for"),
        pytest.param([3], 8, 8, None, 1, id="one of eight"),
        pytest.param([3], 8, 56, None, 1, id="one of seven each"),
        pytest.param(range(32), 2, 64, None, 32, id="half of 64"),
        pytest.param(range(32), 2, 64, 32, 32, id="half of 64, asked for"),
    ],
)
def test_a_mask_of_ones_own_stays(lumi, allowed, size, job_cpus, cpus_per_task, threads):
    for placement in placed(lumi, allowed, size, job_cpus=job_cpus, cpus_per_task=cpus_per_task):
        assert placement.bind is None
        assert placement.cpus == set(allowed)
        assert placement.threads == threads
        assert placement.warnings == []


@pytest.mark.parametrize(
    ("allowed", "size", "job_cpus", "threads"),
    [
        pytest.param([*range(64), *range(128, 192)], 8, 256, 16, id="four ranks bound to each socket"),
        pytest.param(range(128), 4, 64, 16, id="wider than the job, without cgroups"),
        pytest.param(range(256), 4, 64, 8, id="wider than the job, both threads"),
        pytest.param(range(256), 1, 64, 32, id="one rank, wider than the job"),
        pytest.param(range(4), 4, 2, 1, id="wider than a job with fewer cores than ranks"),
    ],
)
def test_a_mask_that_some_ranks_share_stays_and_its_cores_are_divided(dgx, allowed, size, job_cpus, threads):
    for placement in placed(dgx, allowed, size, job_cpus=job_cpus):
        assert placement.bind is None
        assert placement.threads == threads
        assert placement.warnings == []


def test_all_cpus_that_there_are_belong_to_all_ranks(laptop):
    """As in a cluster of several nodes on one machine, where Slurm is told of more CPUs than there are."""
    assert binds(placed(laptop, range(8), 2, job_cpus=64)) == ["0-1,4-5", "2-3,6-7"]


def test_without_slurm_all_cpus_are_the_jobs(laptop):
    (first, second) = (choose_cores(laptop, set(range(8)), rank, 2, None, None, Devices()) for rank in range(2))
    assert binds([first, second]) == ["0-1,4-5", "2-3,6-7"]
    assert choose_cores(laptop, {0}, 0, 2, None, None, Devices()).bind is None


def test_one_thread_per_core_is_everything_where_ranks_asked_for_less(laptop):
    """Two ranks that share four cores, and two that have four each, differ in what they asked for."""
    assert binds(placed(laptop, range(4), 2, job_cpus=8, cpus_per_task=2)) == ["0-1", "2-3"]
    assert binds(placed(laptop, range(4), 2, job_cpus=8, cpus_per_task=4)) == [None, None]
    assert binds(placed(laptop, range(4), 2, job_cpus=8)) == [None, None]


def test_what_was_asked_for_is_never_exceeded(lumi):
    assert [placement.threads for placement in placed(lumi, JOB_CORES, 8, cpus_per_task=4)] == [4] * 8


@pytest.mark.parametrize("job_cpus", [1, 2])
def test_ranks_crowded_on_one_core_are_told_the_remedy(lumi, job_cpus):
    """torchrun under srun without -c, which OLCF found to be far slower ("PyTorch on Frontier")."""
    placements = placed(lumi, [1, 65], 8, job_cpus=job_cpus)
    assert binds(placements) == ["1,65"] * 8
    for placement in placements:
        assert placement.threads == 1
        (warning,) = map(str, placement.warnings)
        assert warning.startswith("8 ranks share 1 core on this node, CPUs 1,65,")
        assert warning.endswith("take turns on them. Start at most 1 rank per node, or request more cores for the job")


def test_more_ranks_than_cores_take_turns(laptop):
    placements = placed(laptop, range(4), 6)
    assert binds(placements) == ["0", "1", "2", "3", "0", "1"]
    assert "6 ranks share 4 cores" in str(placements[0].warnings[0])


def test_a_crowded_socket_is_told_too(dgx):
    (placement, *_) = placed(dgx, range(2), 8, job_cpus=6)
    assert placement.bind is None
    assert "3 ranks share 2 cores" in str(placement.warnings[0])
    assert placement.threads == 1


def of_step(root, masks, rank, allowed):
    """The Placement of a task of a Slurm step with --cpu-bind=map_cpu or mask_cpu, in a job of eight CPUs."""
    return choose_cores(root, allowed, rank, len(masks), 8, None, Devices(), masks=masks)


def test_tasks_that_a_map_puts_on_one_core_are_told_the_option(laptop):
    """srun --cpu-bind=map_cpu:0,0"""
    for rank in range(2):
        placement = of_step(laptop, [{0}, {0}], rank, {0})
        assert (placement.cpus, placement.threads) == ({0}, 1)
        (warning,) = map(str, placement.warnings)
        assert warning == "2 ranks share 1 core on this node, CPUs 0, and take turns on them. Give each rank more"


def test_a_mask_that_contains_another_ranks_is_kept(laptop):
    """srun --cpu-bind=mask_cpu:0x3,0x1: the first is as wide as a job of two CPUs."""
    masks = [{0, 1}, {0}]
    for rank, allowed in enumerate(masks):
        placement = choose_cores(laptop, allowed, rank, 2, 2, None, Devices(), masks=masks)
        assert (placement.bind, placement.cpus, placement.threads) == (None, allowed, 1)
        assert placement.warnings == []


def test_equal_masks_are_cut_into_shares_and_masks_of_another_step_are_ignored(laptop):
    masks = [{0, 1, 2, 3}] * 2
    assert binds([of_step(laptop, masks, rank, {0, 1, 2, 3}) for rank in range(2)]) == ["0-1", "2-3"]
    stale = [{7}, {6}]
    assert of_step(laptop, stale, 0, {0, 1}).bind is None


def test_the_mask_of_mpirun_is_that_of_the_job(laptop):
    """In the cpuset of a batch system or a container, with --bind-to none."""
    placed = [choose_cores(laptop, {2, 3}, rank, 4, None, None, Devices(), launcher={2, 3}) for rank in range(4)]
    assert binds(placed) == ["2", "3", "2", "3"]
    (warning,) = map(str, placed[0].warnings)
    assert warning.startswith(
        "4 ranks share 2 cores on this node, CPUs 2-3, and take turns on them. Start at most 2 ranks"
    )
    (own, _) = (choose_cores(laptop, {2 + rank}, rank, 2, None, None, Devices(), launcher={2, 3}) for rank in range(2))
    assert (own.bind, own.warnings) == (None, [])

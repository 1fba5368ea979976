"""The GPU of a rank: its turn, or what Slurm gave to it."""

from itertools import product

import node_trees
import pytest
from pytorch_launch.report import device
from slurm_gpus import choose_devices, numbers, own, slurm


def test_ranks_that_see_all_gpus_take_one_after_the_other(lumi):
    for rank in range(8):
        devices = choose_devices({}, lumi, rank, 8)
        assert (devices.vendor, devices.count, devices.index, own(lumi, devices)) == ("amd", 8, rank, rank)
        assert numbers(lumi, devices.candidate_gpus) == list(range(8))
        assert (devices.warnings, devices.changes) == ([], {})
        assert device(devices) == f"device {rank} of 8 amd ({devices.gpu.pci})"
    assert numbers(lumi, choose_devices({}, lumi, 1, 2).candidate_gpus) == [0, 1]


def test_slurms_generic_gres_gives_each_rank_its_gpu(lumi):
    for rank in range(8):
        number = str(rank)
        env = slurm(number, 8, ROCR_VISIBLE_DEVICES=number, CUDA_VISIBLE_DEVICES=number)
        devices = choose_devices(env, lumi, rank, 8)
        assert (devices.count, devices.index, own(lumi, devices)) == (1, 0, rank)
        assert devices.changes == ({} if rank == 0 else {"CUDA_VISIBLE_DEVICES": "0"})


def test_gpus_that_a_cgroup_hides_are_not_counted_and_those_of_other_ranks_are_known(tmp_path):
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    for listed, index in (("0,1", 1), ("1", 0)):  # or one that a wrapper leaves
        devices = choose_devices(slurm("2,3", 2, ROCR_VISIBLE_DEVICES=listed), root, 1, 2)
        assert (devices.index, devices.gpu.pci) == (index, "0000:cc:00.0")
        assert [gpu.pci for gpu in devices.candidate_gpus] == ["0000:c9:00.0", "0000:cc:00.0"]
    node_trees.hide_amd_gpu(tmp_path, 4, 2)
    devices = choose_devices(slurm("3", 8, ROCR_VISIBLE_DEVICES="0"), root, 3, 8)
    assert devices.gpu.pci == "0000:cc:00.0"
    assert [gpu.pci for gpu in devices.candidate_gpus] == list(node_trees.LUMI_G)
    assert devices.gpu is devices.candidate_gpus[3]
    devices = choose_devices(slurm("3", 8), root, 3, 8)  # no list at all
    assert (devices.index, devices.gpu.pci, devices.warnings) == (0, "0000:cc:00.0", [])


def test_a_job_without_gpus_and_a_laptop_have_none(tmp_path, laptop):
    root = node_trees.lumi_g(tmp_path)
    for number in range(8):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    for env, node in (({}, root), ({"CUDA_VISIBLE_DEVICES": "0"}, laptop)):
        devices = choose_devices(env, node, 0, 4)
        assert (devices.vendor, devices.count, devices.index, devices.gpu) == (None, 0, None, None)
        assert devices.changes == devices.narrowed() == {}


# What a task finds in its environment, seen with Slurm 22.05: only its own GPUs in SLURM_STEP_GPUS, all of
# the step in SLURM_GPUS_ON_NODE, and with --gpu-bind=none no list at all.
@pytest.mark.parametrize("node", ["lumi", "dgx"])
@pytest.mark.parametrize(
    ("given", "on_node", "rank", "size", "expected"),
    [
        pytest.param("0,1,2,3,4,5,6,7", 8, 3, 8, (3, [3], 8), id="--gpus-per-node=8"),
        pytest.param("3", 8, 3, 8, (0, [3], 8), id="--gpus-per-task=1"),
        pytest.param("6,7", 8, 3, 4, (0, [6, 7], 8), id="--gpus-per-task=2"),
        pytest.param("4", 8, 3, 8, (0, [4], 8), id="--gpu-bind=map_gpu:7,6,5,4,3,2,1,0"),
        pytest.param("5", 8, 2, 4, (0, [5], 8), id="more GPUs than ranks"),
        pytest.param("0,1", 4, 1, 4, (1, [1], None), id="--gpu-bind=mask_gpu:0x3,0x3,0xc,0xc"),
        pytest.param("0,1,2,3", 4, 2, 4, (2, [2], 4), id="half of the node"),
        pytest.param("2", 4, 2, 4, (0, [2], None), id="half of the node, one GPU each"),
    ],
)
def test_a_rank_takes_the_first_of_its_own_gpus_or_its_turn_of_all(request, node, given, on_node, rank, size, expected):
    root = request.getfixturevalue(node)
    name = "ROCR_VISIBLE_DEVICES" if node == "lumi" else "CUDA_VISIBLE_DEVICES"
    devices = choose_devices(slurm(given, on_node, **{name: given}), root, rank, size)
    index, held, in_play = expected
    assert (devices.index, numbers(root, devices.held)) == (index, held)
    assert in_play == (None if devices.candidate_gpus is None else len(devices.candidate_gpus))
    assert devices.candidate_gpus is None or set(devices.held) <= set(devices.candidate_gpus)


def test_a_wrapper_may_give_each_rank_its_gpu(lumi, dgx):
    """LUMI's select_gpu sets ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, others do so under mpirun."""
    devices = choose_devices(slurm("4,5,6,7", 4, CUDA_VISIBLE_DEVICES="6"), dgx, 2, 4)
    assert (own(dgx, devices), numbers(dgx, devices.candidate_gpus)) == (6, [4, 5, 6, 7])
    everything = slurm("0,1,2,3,4,5,6,7", 8)
    for env in (everything, {}):
        devices = choose_devices({**env, "ROCR_VISIBLE_DEVICES": "5"}, lumi, 5, 8)
        assert (devices.count, devices.index, own(lumi, devices)) == (1, 0, 5)
        assert numbers(lumi, devices.candidate_gpus) == list(range(8))
        assert devices.warnings == []


def test_the_batch_nodes_gpus_say_nothing_in_a_step(dgx):
    env = {"SLURM_JOB_GPUS": "2,3", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert own(dgx, choose_devices(env, dgx, 0, 2)) == 2
    assert own(dgx, choose_devices({**env, "SLURM_STEP_ID": "1"}, dgx, 0, 2)) is None


def test_ranks_share_a_list_that_slurm_did_not_make_for_each(lumi):
    narrowed_by_user = slurm("0,1,2,3,4,5,6,7", 8, ROCR_VISIBLE_DEVICES="0,1")
    number_not_known = {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}
    for env in (narrowed_by_user, number_not_known):
        assert [choose_devices(env, lumi, rank, 2).index for rank in (0, 1)] == [0, 1]


def test_workers_of_torchrun_share_what_slurm_gave_to_it_or_have_a_gpu_each(lumi, dgx):
    env = slurm("2,3", 4, ROCR_VISIBLE_DEVICES="2,3", TORCHELASTIC_RUN_ID="none")
    assert [choose_devices(env, lumi, rank, 2).index for rank in (0, 1)] == [0, 1]
    # with virtual local ranks
    devices = choose_devices({"TORCHELASTIC_RUN_ID": "none", "CUDA_VISIBLE_DEVICES": "5"}, dgx, 0, 8)
    assert (devices.index, own(dgx, devices), len(devices.candidate_gpus)) == (0, 5, 8)
    assert devices.warnings == []
    env = slurm("0", 1, CUDA_VISIBLE_DEVICES="0", TORCHELASTIC_RUN_ID="none")
    assert "2 ranks on this node share 1 GPU" in str(choose_devices(env, dgx, 0, 2).warnings[0])


def test_more_ranks_than_gpus_take_turns_with_a_warning(perlmutter):
    taken = [choose_devices({}, perlmutter, rank, 6) for rank in range(6)]
    assert [devices.index for devices in taken] == [0, 1, 2, 3, 0, 1]
    assert [devices.sharers for devices in taken] == [2, 2, 1, 1, 2, 2]
    assert [devices.share_index for devices in taken] == [0, 0, 0, 0, 1, 1]
    for devices in taken:
        (warning,) = map(str, devices.warnings)
        assert "6 ranks on this node share 4 GPUs" in warning and "at most 4" in warning


def test_one_gpu_for_all_ranks_is_worth_a_warning(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="nvidia", gpus={"0000:01:00.0": 0})
    assert "2 ranks on this node share 1 GPU," in str(choose_devices({}, root, 1, 2).warnings[0])
    assert "share 1 GPU," in str(choose_devices(slurm("0", 1, CUDA_VISIBLE_DEVICES="0"), root, 1, 2).warnings[0])
    assert choose_devices({}, root, 0, 1).warnings == []


def test_ranks_that_see_a_part_of_the_steps_gpus_are_told_so(lumi):
    devices = choose_devices(slurm("2,3", 8, ROCR_VISIBLE_DEVICES="2,3"), lumi, 3, 8)  # --gpu-bind=closest
    assert (devices.index, own(lumi, devices), devices.candidate_gpus) == (1, 3, None)
    assert "sees 2 of the step's 8 GPUs" in str(devices.warnings[0])


def test_an_index_is_always_valid(lumi, dgx):
    lists = (None, "", "0", "3", "0,1,2", "7,6,5,4,3,2,1,0", "0,9", "GPU-3")
    for root, listed, on_node, size in product((lumi, dgx), lists, (None, 1, 4, 8), (1, 3, 8, 20)):
        env = {} if on_node is None else {"SLURM_GPUS_ON_NODE": str(on_node)}
        if listed is not None:
            env.update(ROCR_VISIBLE_DEVICES=listed, CUDA_VISIBLE_DEVICES=listed)
        for rank in range(size):
            devices = choose_devices(env, root, rank, size)
            assert devices.index is None if devices.count == 0 else 0 <= devices.index < devices.count
            assert all("\n" not in str(warning) for warning in devices.warnings or ())

"""The GPU of a rank: its turn, or what Slurm gave to it; lists of visible GPUs, of users and of cgroups."""

from itertools import product

import node_trees
import pytest
from pytorch_launch import devices as chooser
from pytorch_launch.report import device
from pytorch_launch.topology import Node


def choose_devices(env, root, local_rank, local_size):
    """The Devices of a rank with environment `env` on the node at `root`."""
    return chooser.choose_devices(env, Node(root), local_rank, local_size)


def slurm(step, on_node, **lists):
    """Slurm's variables for a task: the GPUs of the task, the number of the step's here, its lists of visible GPUs."""
    return {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": step, "SLURM_GPUS_ON_NODE": str(on_node), **lists}


def numbers(root, found):
    """Which GPUs of the node those `found` are, None for none known."""
    if found is None:
        return None
    addresses = [gpu.pci for gpu in Node(root).gpus]
    return [addresses.index(gpu.pci) for gpu in found]


def own(root, devices):
    """The number on the node of the GPU that a rank uses, None if not known."""
    return None if devices.gpu is None else numbers(root, [devices.gpu])[0]


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


@pytest.mark.parametrize(
    ("env", "gpus"),
    [
        *(
            ({name: "7,2,5"}, [7, 2, 5])
            for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
        ),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "3,1"}, [7, 5]),  # HIP's counts what ROCR's leaves
        *(
            ({name: "GPU-DEADBEEF00000005,GPU-deadbeef00000001"}, [5, 1])
            for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
        ),
        ({"HIP_VISIBLE_DEVICES": "GPU-deadbeef"}, []),  # any of eight
        ({"ROCR_VISIBLE_DEVICES": "2,1,1,3"}, [2, 1]),  # a GPU that is named twice ends an AMD list
    ],
)
def test_a_users_list_decides_which_and_in_which_order(lumi, env, gpus):
    devices = choose_devices(env, lumi, 1, len(gpus) or 1)
    assert (devices.count, devices.changes) == (len(gpus), {})
    assert not gpus or (devices.index, own(lumi, devices), devices.warnings) == (1, gpus[1], [])
    assert numbers(lumi, devices.candidate_gpus) == (gpus or None)


@pytest.mark.parametrize(
    ("rocr", "names", "value", "changed"),
    [
        pytest.param("3", ["CUDA"], "3", "0", id="Slurm's generic GRES"),
        pytest.param("3", ["HIP", "CUDA"], "3", "0", id="both of HIP's lists"),
        pytest.param("4,5,6,7", ["HIP"], "6,4", "2,0", id="a user's choice is kept"),
        pytest.param("4,5", ["CUDA"], "0,1,2", "0,1", id="one that cannot be told"),
    ],
)
def test_lists_that_contradict_rocr_are_counted_anew(lumi, rocr, names, value, changed):
    env = {"ROCR_VISIBLE_DEVICES": rocr, **{f"{name}_VISIBLE_DEVICES": value for name in names}}
    devices = choose_devices(env, lumi, 0, 1)
    assert devices.changes == {f"{name}_VISIBLE_DEVICES": changed for name in names}
    assert devices.count == len(changed.split(","))
    (warning,) = map(str, devices.warnings)
    assert f"ROCR_VISIBLE_DEVICES={rocr}" in warning
    assert f"{names[0]}_VISIBLE_DEVICES={value} is set to {changed}" in warning


def test_cuda_follows_hip(lumi):
    devices = choose_devices({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "3"}, lumi, 0, 2)
    assert (devices.count, own(lumi, devices)) == (2, 1)
    assert devices.changes == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert "differ" in str(devices.warnings[0])


@pytest.mark.parametrize("visible", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize(
    ("value", "count", "warnings"),
    [
        *(("", 0, 0), ("-1", 0, 0), ("NoDevFiles", 0, 0), ("99", 0, 1)),
        *(("0,1,99,2", 2, 0), ("0,2,-1,1", 2, 0), (" 2, 1", 2, 0)),
    ],
)
@pytest.mark.parametrize("node", ["lumi", "dgx"])
def test_a_list_ends_at_the_first_entry_that_is_no_gpu(request, node, visible, value, count, warnings):
    if node == "dgx" and visible != "CUDA_VISIBLE_DEVICES":
        count, warnings = 8, 0  # AMD's variables mean nothing there
    devices = choose_devices({visible: value}, request.getfixturevalue(node), 0, 1)
    assert (devices.count, devices.index) == (count, 0 if count else None)
    assert len(devices.warnings) == warnings


@pytest.mark.parametrize(
    ("given", "on_node", "listed", "held"),
    [
        pytest.param("4,5,6,7", 4, "4,5,6,7", [4, 5, 6, 7], id="Slurm without cgroups"),
        pytest.param("4,5,6,7", 4, "0,1,2,3", [4, 5, 6, 7], id="Slurm with cgroups"),
        pytest.param("6", 4, "2", [6], id="the third task with cgroups"),
        pytest.param("6", 4, "0", [6], id="the third task with a cgroup of its own"),
        pytest.param("0,1,2,3,4,5,6,7", 8, "3,2,1,0", [3, 2, 1, 0], id="a user's order, full node"),
        pytest.param("4,5,6,7", 4, "7,4", [7, 4], id="a user's choice, which cannot be in a cgroup"),
        pytest.param("4,5,6,7", 4, "1,0", [5, 4], id="a user's choice, which must be in a cgroup"),
        pytest.param("4,5", 2, "1,0", [5, 4], id="a user's order in a cgroup"),
        pytest.param("1,2", 2, "1", None, id="a user's choice, which may be both"),
        pytest.param("1,2", 2, "1,3", None, id="a user's choice, half of it of other GPUs"),
        pytest.param("0,2", 2, "0", [0], id="a user's choice, which is the same in both"),
        pytest.param("1,2", 2, "5", None, id="a user's choice, which is neither"),
    ],
)
def test_numbers_in_a_cgroup_are_translated_if_they_have_one_meaning(dgx, given, on_node, listed, held):
    devices = choose_devices(slurm(given, on_node, CUDA_VISIBLE_DEVICES=listed), dgx, 0, 1)
    assert devices.count == len(listed.split(","))
    assert numbers(dgx, devices.held) == (held or [])
    assert own(dgx, devices) == (held[0] if held else None)


@pytest.mark.parametrize(
    ("env", "count", "gpu"),
    [
        pytest.param(slurm("0,1,2,3,4,5,6,7", 8), 8, 0, id="all GPUs"),
        pytest.param(slurm("0,1", 2), 2, 0, id="the first GPUs, numbered alike with cgroups and without"),
        pytest.param(slurm("2,3", 2), 2, None, id="others, with cgroups or without"),
        pytest.param({"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": "2"}, 2, None, id="--gpu-bind=none"),
    ],
)
def test_without_a_list_the_gpus_of_the_step_are_visible(dgx, env, count, gpu):
    devices = choose_devices(env, dgx, 0, 1)
    assert (devices.count, own(dgx, devices)) == (count, gpu)


def test_an_nvidia_gpu_may_be_named_by_the_beginning_of_its_uuid_but_once(dgx):
    listed = "GPU-50000000-d72c-4106-c12f-20bd9faed9f6,GPU-3,GPU-"
    devices = choose_devices({"CUDA_VISIBLE_DEVICES": listed}, dgx, 1, 2)
    assert (devices.count, devices.index, own(dgx, devices)) == (2, 1, 3)
    assert numbers(dgx, devices.candidate_gpus) == [5, 3]
    assert choose_devices({"CUDA_VISIBLE_DEVICES": "2,1,1,3"}, dgx, 0, 1).count == 0


@pytest.mark.parametrize("listed", ["MIG-3b2a9e0f-1c5d-5e6f-8a7b-0c1d2e3f4a5b", "MIG-GPU-3/1/0,MIG-GPU-3/2/0"])
def test_cuda_finds_one_mig_instance_at_an_unknown_place(dgx, listed):
    devices = choose_devices({"CUDA_VISIBLE_DEVICES": listed}, dgx, 1, 2)
    assert (devices.count, devices.index, devices.gpu, devices.candidate_gpus) == (1, 0, None, None)


def test_each_rank_gets_a_mig_instance_of_its_own(dgx):
    """A process sees the first of a list alone, so two ranks would use the same."""
    env = {"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b"}
    ranks = [choose_devices(env, dgx, rank, 3) for rank in range(3)]
    assert [devices.changes["CUDA_VISIBLE_DEVICES"] for devices in ranks] == ["MIG-a", "MIG-b", "MIG-a"]
    assert [(devices.index, devices.sharers) for devices in ranks] == [(0, 2), (0, 1), (0, 2)]
    assert str(ranks[0].warnings[0]) == (
        "3 ranks on this node share 2 instances of GPUs (MIG). Start at most 2 per node"
    )
    assert not choose_devices(env, dgx, 1, 2).warnings
    assert "CUDA_VISIBLE_DEVICES" not in choose_devices(env, dgx, 0, 1).changes
    # torchrun starts a worker for each
    assert choose_devices(env, dgx, 0, 1).slots == 2
    assert choose_devices({"CUDA_VISIBLE_DEVICES": "MIG-a"}, dgx, 0, 1).slots is None


def test_cuda_counts_in_pci_order_unless_the_user_chooses_another_order(dgx):
    assert choose_devices({}, dgx, 0, 1).changes == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    devices = choose_devices({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, dgx, 2, 8)
    assert (devices.changes, devices.count, devices.index, devices.gpu) == ({}, 8, 2, None)


BOTH = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@pytest.mark.parametrize(
    ("node", "env", "narrowed"),
    [
        ("lumi", {}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, {"ROCR_VISIBLE_DEVICES": "5"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1,0"}, {"HIP_VISIBLE_DEVICES": "0"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("lumi", {"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "0"}, dict.fromkeys(BOTH, "7")),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "3"}, {}),
        ("dgx", {}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ("dgx", {"CUDA_VISIBLE_DEVICES": "GPU-5,GPU-3"}, {"CUDA_VISIBLE_DEVICES": "GPU-3"}),
        ("dgx", slurm("4,5", 2, CUDA_VISIBLE_DEVICES="0,1"), {"CUDA_VISIBLE_DEVICES": "1"}),
    ],
)
def test_a_rank_can_be_left_with_its_gpu_alone(request, node, env, narrowed):
    root = request.getfixturevalue(node)
    devices = choose_devices(env, root, 1, 2)
    assert devices.narrowed() == narrowed
    after = choose_devices({**env, **devices.changes, **devices.narrowed()}, root, 1, 2)
    assert (after.count, after.index) == (1, 0)
    if not env.get("SLURM_STEP_GPUS"):
        assert own(root, after) == own(root, devices)

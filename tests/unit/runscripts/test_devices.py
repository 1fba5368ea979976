"""The GPU of a rank, from the variables of Slurm and of users."""

import node_trees
import pytest
from pytorch_launch import devices as chooser
from pytorch_launch.topology import gpus
from pytorch_launch.visible import visible_gpus


def choose_devices(env, root, local_rank, local_size):
    """The Devices of a rank with environment `env` on the node at `root`."""
    return chooser.choose_devices(visible_gpus(env, root), root, local_rank, local_size)


def slurm(step, on_node, **lists):
    """Slurm's variables for a task: the GPUs of the task, the number of the step's here, its lists of visible GPUs."""
    return {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": step, "SLURM_GPUS_ON_NODE": str(on_node), **lists}


def numbers(root, found):
    """Which GPUs of the node those `found` are, None for none known."""
    if found is None:
        return None
    addresses = [gpu.pci for gpu in gpus(root)]
    return [addresses.index(gpu.pci) for gpu in found]


def own(root, devices):
    """The number on the node of the GPU that a rank uses, None if not known."""
    return None if devices.gpu is None else numbers(root, [devices.gpu])[0]


def test_ranks_that_see_all_gpus_take_one_after_the_other(lumi):
    for rank in range(8):
        devices = choose_devices({}, lumi, rank, 8)
        assert (devices.vendor, devices.count, devices.index) == ("amd", 8, rank)
        assert own(lumi, devices) == rank
        assert numbers(lumi, devices.candidate_gpus) == list(range(8))
        assert devices.local_rank_is_index
        assert devices.warnings == []
        assert devices.changes == {}


def test_only_gpus_that_ranks_use_are_in_play(lumi):
    assert numbers(lumi, choose_devices({}, lumi, 1, 2).candidate_gpus) == [0, 1]


@pytest.mark.parametrize("visible", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_a_users_list_decides_which_and_in_which_order(lumi, visible):
    devices = choose_devices({visible: "7,2,5"}, lumi, 1, 3)
    assert (devices.count, devices.index, own(lumi, devices)) == (3, 1, 2)
    assert numbers(lumi, devices.candidate_gpus) == [7, 2, 5]
    assert devices.changes == {}


def test_a_list_for_hip_counts_what_rocr_leaves(lumi):
    devices = choose_devices({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "3,1"}, lumi, 0, 2)
    assert (devices.count, own(lumi, devices)) == (2, 7)
    assert devices.changes == {}
    assert devices.warnings == []


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


def test_slurms_generic_gres_gives_each_rank_its_gpu(lumi):
    for rank in range(8):
        number = str(rank)
        env = slurm(number, 8, ROCR_VISIBLE_DEVICES=number, CUDA_VISIBLE_DEVICES=number)
        devices = choose_devices(env, lumi, rank, 8)
        assert (devices.count, devices.index, own(lumi, devices)) == (1, 0, rank)
        assert devices.changes == ({} if rank == 0 else {"CUDA_VISIBLE_DEVICES": "0"})


def test_cuda_follows_hip(lumi):
    devices = choose_devices({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "3"}, lumi, 0, 2)
    assert (devices.count, own(lumi, devices)) == (2, 1)
    assert devices.changes == {"CUDA_VISIBLE_DEVICES": "1,2"}
    assert "differ" in str(devices.warnings[0])


@pytest.mark.parametrize("visible", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"])
def test_an_amd_gpu_may_be_named_by_its_uuid(lumi, visible):
    devices = choose_devices({visible: "GPU-DEADBEEF00000005,GPU-deadbeef00000001"}, lumi, 0, 2)
    assert numbers(lumi, devices.candidate_gpus) == [5, 1]
    assert choose_devices({visible: "GPU-deadbeef"}, lumi, 0, 1).count == 0  # any of eight


@pytest.mark.parametrize("visible", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize(
    ("value", "count", "warnings"),
    [
        ("", 0, 0),
        ("-1", 0, 0),
        ("NoDevFiles", 0, 0),
        ("99", 0, 1),
        ("0,1,99,2", 2, 0),
        ("0,2,-1,1", 2, 0),
        (" 2, 1", 2, 0),
    ],
)
@pytest.mark.parametrize("node", ["lumi", "dgx"])
def test_a_list_ends_at_the_first_entry_that_is_no_gpu(request, node, visible, value, count, warnings):
    if node == "dgx" and visible != "CUDA_VISIBLE_DEVICES":
        count, warnings = 8, 0  # AMD's variables mean nothing there
    devices = choose_devices({visible: value}, request.getfixturevalue(node), 0, 1)
    assert (devices.count, devices.index) == (count, 0 if count else None)
    assert len(devices.warnings) == warnings


def test_a_gpu_that_a_cgroup_hides_is_not_counted(tmp_path):
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    devices = choose_devices(slurm("2,3", 2, ROCR_VISIBLE_DEVICES="0,1"), root, 1, 2)
    assert (devices.count, devices.index, devices.gpu.pci) == (2, 1, "0000:cc:00.0")
    assert [gpu.pci for gpu in devices.candidate_gpus] == ["0000:c9:00.0", "0000:cc:00.0"]


def test_ranks_that_a_cgroup_or_a_wrapper_leaves_one_gpu_know_those_of_the_others(tmp_path):
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    devices = choose_devices(slurm("2,3", 2, ROCR_VISIBLE_DEVICES="1"), root, 1, 2)
    assert [gpu.pci for gpu in devices.candidate_gpus] == ["0000:c9:00.0", "0000:cc:00.0"]
    node_trees.hide_amd_gpu(tmp_path, 4, 2)
    devices = choose_devices(slurm("3", 8, ROCR_VISIBLE_DEVICES="0"), root, 3, 8)
    assert devices.gpu.pci == "0000:cc:00.0"
    assert [gpu.pci for gpu in devices.candidate_gpus] == list(node_trees.LUMI_G)
    assert devices.gpu is devices.candidate_gpus[3]
    devices = choose_devices(slurm("3", 8), root, 3, 8)  # no list at all
    assert (devices.index, devices.gpu.pci, devices.warnings) == (0, "0000:cc:00.0", [])


def test_a_job_without_gpus_has_none(tmp_path):
    root = node_trees.lumi_g(tmp_path)
    for number in range(8):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    devices = choose_devices({}, root, 0, 4)
    assert (devices.vendor, devices.count, devices.index, devices.gpu, devices.changes) == (None, 0, None, None, {})


def test_a_laptop_has_no_gpu(tmp_path):
    devices = choose_devices({"CUDA_VISIBLE_DEVICES": "0"}, node_trees.laptop(tmp_path), 0, 2)
    assert (devices.vendor, devices.count, devices.index, devices.candidate_gpus) == (None, 0, None, None)
    assert devices.changes == devices.narrowed() == {}
    assert devices.local_rank_is_index


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


def test_a_rank_that_is_told_of_the_whole_step_knows_the_gpus_of_the_others(dgx):
    devices = choose_devices(slurm("4,5,6,7", 4, CUDA_VISIBLE_DEVICES="6"), dgx, 2, 4)
    assert own(dgx, devices) == 6
    assert numbers(dgx, devices.candidate_gpus) == [4, 5, 6, 7]


def test_a_wrapper_may_give_each_rank_its_gpu(lumi):
    """LUMI's select_gpu sets ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, others do so under mpirun."""
    everything = slurm("0,1,2,3,4,5,6,7", 8)
    for env in (everything, {}):
        devices = choose_devices({**env, "ROCR_VISIBLE_DEVICES": "5"}, lumi, 5, 8)
        assert (devices.count, devices.index, own(lumi, devices)) == (1, 0, 5)
        assert numbers(lumi, devices.candidate_gpus) == list(range(8))
        assert not devices.local_rank_is_index
        assert devices.warnings == []


def test_gpus_without_a_list_are_visible_all(lumi, dgx):
    env = {"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": "8"}  # --gpu-bind=none
    for root in (lumi, dgx):
        devices = choose_devices(env, root, 6, 8)
        assert (devices.count, devices.index, own(root, devices)) == (8, 6, 6)


def test_the_batch_nodes_gpus_say_nothing_in_a_step(dgx):
    env = {"SLURM_JOB_GPUS": "2,3", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert own(dgx, choose_devices(env, dgx, 0, 2)) == 2
    assert own(dgx, choose_devices({**env, "SLURM_STEP_ID": "1"}, dgx, 0, 2)) is None


def test_ranks_share_a_list_that_slurm_did_not_make_for_each(lumi):
    narrowed_by_user = slurm("0,1,2,3,4,5,6,7", 8, ROCR_VISIBLE_DEVICES="0,1")
    number_not_known = {"SLURM_STEP_ID": "0", "SLURM_STEP_GPUS": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}
    for env in (narrowed_by_user, number_not_known):
        assert [choose_devices(env, lumi, rank, 2).index for rank in (0, 1)] == [0, 1]


def test_workers_of_torchrun_share_what_slurm_gave_to_it(lumi):
    env = slurm("2,3", 4, ROCR_VISIBLE_DEVICES="2,3", TORCHELASTIC_RUN_ID="none")
    assert [choose_devices(env, lumi, rank, 2).index for rank in (0, 1)] == [0, 1]


def test_workers_of_torchrun_with_virtual_local_ranks_have_a_gpu_each(dgx):
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
    assert [devices.local_rank_is_index for devices in taken] == [True] * 4 + [False] * 2
    for devices in taken:
        (warning,) = map(str, devices.warnings)
        assert "6 ranks on this node share 4 GPUs" in warning
        assert "at most 4" in warning


def test_one_gpu_for_all_ranks_is_worth_a_warning(tmp_path):
    root = node_trees.node(tmp_path, cores=4, vendor="nvidia", gpus={"0000:01:00.0": 0})
    assert "2 ranks on this node share 1 GPU," in str(choose_devices({}, root, 1, 2).warnings[0])
    assert "share 1 GPU," in str(choose_devices(slurm("0", 1, CUDA_VISIBLE_DEVICES="0"), root, 1, 2).warnings[0])
    assert choose_devices({}, root, 0, 1).warnings == []


def test_ranks_that_see_a_part_of_the_steps_gpus_are_told_so(lumi):
    devices = choose_devices(slurm("2,3", 8, ROCR_VISIBLE_DEVICES="2,3"), lumi, 3, 8)  # --gpu-bind=closest
    assert (devices.index, own(lumi, devices), devices.candidate_gpus) == (1, 3, None)
    assert "sees 2 of the step's 8 GPUs" in str(devices.warnings[0])


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


def test_an_nvidia_gpu_may_be_named_by_the_beginning_of_its_uuid(dgx):
    listed = "GPU-50000000-d72c-4106-c12f-20bd9faed9f6,GPU-3,GPU-"
    devices = choose_devices({"CUDA_VISIBLE_DEVICES": listed}, dgx, 1, 2)
    assert (devices.count, devices.index, own(dgx, devices)) == (2, 1, 3)
    assert numbers(dgx, devices.candidate_gpus) == [5, 3]


@pytest.mark.parametrize("listed", ["MIG-3b2a9e0f-1c5d-5e6f-8a7b-0c1d2e3f4a5b", "MIG-GPU-3/1/0,MIG-GPU-3/2/0"])
def test_cuda_finds_one_mig_instance_at_an_unknown_place(dgx, listed):
    devices = choose_devices({"CUDA_VISIBLE_DEVICES": listed}, dgx, 1, 2)
    assert (devices.count, devices.index, devices.gpu, devices.candidate_gpus) == (1, 0, None, None)


def test_a_gpu_named_twice_ends_an_amd_list_and_voids_an_nvidia_list(lumi, dgx):
    assert choose_devices({"ROCR_VISIBLE_DEVICES": "2,1,1,3"}, lumi, 0, 1).count == 2
    assert choose_devices({"CUDA_VISIBLE_DEVICES": "2,1,1,3"}, dgx, 0, 1).count == 0


def test_cuda_counts_in_pci_order_unless_the_user_chooses_another_order(dgx):
    assert choose_devices({}, dgx, 0, 1).changes == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    devices = choose_devices({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, dgx, 2, 8)
    assert (devices.changes, devices.count, devices.index, devices.gpu) == ({}, 8, 2, None)


@pytest.mark.parametrize(
    ("node", "env", "narrowed"),
    [
        ("lumi", {}, {"ROCR_VISIBLE_DEVICES": "1"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, {"ROCR_VISIBLE_DEVICES": "5"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1,0"}, {"HIP_VISIBLE_DEVICES": "0"}),
        ("lumi", {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        (
            "lumi",
            {"HIP_VISIBLE_DEVICES": "6,7", "CUDA_VISIBLE_DEVICES": "0"},
            {"HIP_VISIBLE_DEVICES": "7", "CUDA_VISIBLE_DEVICES": "7"},
        ),
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


def test_an_index_is_always_valid(lumi, dgx):
    for root in (lumi, dgx):
        for listed in (None, "", "0", "3", "0,1,2", "7,6,5,4,3,2,1,0", "0,9", "GPU-3"):
            for on_node in (None, 1, 4, 8):
                for size in (1, 3, 8, 20):
                    env = {} if on_node is None else {"SLURM_GPUS_ON_NODE": str(on_node)}
                    if listed is not None:
                        env.update(ROCR_VISIBLE_DEVICES=listed, CUDA_VISIBLE_DEVICES=listed)
                    for rank in range(size):
                        devices = choose_devices(env, root, rank, size)
                        assert devices.index is None if devices.count == 0 else 0 <= devices.index < devices.count
                        assert not devices.warnings or all("\n" not in str(warning) for warning in devices.warnings)

"""Lists of visible GPUs, of users and of cgroups."""

import pytest
from slurm_gpus import choose_devices, numbers, own, slurm


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

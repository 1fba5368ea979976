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


def found(root, devices):
    """What a rank has, with GPUs by their numbers on the node; `known` is the number of GPUs in play."""
    gpus = {"own": own(root, devices), "held": numbers(root, devices.held)}
    claims = numbers(root, devices.claims)
    gpus.update(claims=claims, known=None if claims is None else len(claims))
    names = ("vendor", "count", "index", "changes")
    return {**gpus, **{name: getattr(devices, name) for name in names}}


ROCR, HIP, CUDA = (f"{name}_VISIBLE_DEVICES" for name in ("ROCR", "HIP", "CUDA"))
ALL, ALL_LISTED = [*range(8)], "0,1,2,3,4,5,6,7"
WORKER = {"TORCHELASTIC_RUN_ID": "none"}
#: What a task finds in its environment, seen with Slurm 22.05: only its own GPUs in SLURM_STEP_GPUS, all of the step in
#: SLURM_GPUS_ON_NODE, and with --gpu-bind=none no list at all. Then rank and size, index, GPUs held and known.
OF_TASKS = [
    (ALL_LISTED, 8, 3, 8, 3, [3], 8),  # --gpus-per-node=8
    ("3", 8, 3, 8, 0, [3], 8),  # --gpus-per-task=1
    ("6,7", 8, 3, 4, 0, [6, 7], 8),  # --gpus-per-task=2
    ("4", 8, 3, 8, 0, [4], 8),  # --gpu-bind=map_gpu:7,6,5,4,3,2,1,0
    ("5", 8, 2, 4, 0, [5], 8),  # more GPUs than ranks
    ("0,1", 4, 1, 4, 1, [1], None),  # --gpu-bind=mask_gpu:0x3,0x3,0xc,0xc
    ("0,1,2,3", 4, 2, 4, 2, [2], 4),  # half of the node
    ("2", 4, 2, 4, 0, [2], None),  # half of the node, one GPU each
]
#: Lists of users, and the GPUs that they mean.
OF_USERS = [
    *(({name: "7,2,5"}, [7, 2, 5]) for name in (ROCR, HIP, CUDA)),
    ({ROCR: "4,5,6,7", HIP: "3,1"}, [7, 5]),  # HIP's counts what ROCR's leaves
    *(({name: "GPU-DEADBEEF00000005,GPU-deadbeef00000001"}, [5, 1]) for name in (ROCR, HIP)),
    ({ROCR: "2,1,1,3"}, [2, 1]),  # a GPU that is named twice ends an AMD list
]
#: Without cgroups, Slurm's GPUs of a task and their number, a list of the user's, and what is held.
OF_NODE = [
    ("4,5,6,7", 4, "4,5,6,7", [4, 5, 6, 7]),
    (ALL_LISTED, 8, "3,2,1,0", [3, 2, 1, 0]),
    ("4,5,6,7", 4, "7,4", [7, 4]),
    ("1,2", 2, "5", [5]),
]
#: A list of ROCR, other lists, their value, and what they are set to.
CONTRADICTING = [
    ("3", [CUDA], "3", "0"),  # Slurm's generic GRES
    ("3", [HIP, CUDA], "3", "0"),
    ("4,5,6,7", [HIP], "6,4", "2,0"),  # a user's choice is kept
    ("4,5", [CUDA], "0,1,2", "0,1"),  # one that cannot be told
    ("2,3", [HIP], "0,1,2", "0,1"),  # also in part
]
#: Node, environment, rank and size; what is found, and a part of the only warning.
CHOICES = [
    *(
        ("lumi", {}, rank, 8, {"own": rank, "index": rank, "count": 8, "claims": ALL, "changes": {}}, "")
        for rank in ALL
    ),
    ("lumi", {}, 1, 2, {"vendor": "amd", "claims": [0, 1]}, ""),
    ("dgx", {}, 0, 1, {"vendor": "nvidia", "changes": {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}}, ""),
    ("dgx", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, 2, 8, {"changes": {}, "count": 8, "index": 2, "own": None}, ""),
    *(
        ("perlmutter", {}, rank, 6, {"index": rank % 4, "claims": [0, 1, 2, 3, 0, 1]}, "share 4 GPUs")
        for rank in range(6)
    ),
    *(
        (node, slurm(given, on_node, **{name: given}), *rank, {"index": index, "held": held, "known": known}, None)
        for node, name in (("lumi", ROCR), ("dgx", CUDA))
        for given, on_node, *rank, index, held, known in OF_TASKS
    ),
    # Slurm's generic GRES
    ("lumi", slurm("3", 8, **{ROCR: "3", CUDA: "3"}), 3, 8, {"own": 3, "changes": {CUDA: "0"}}, "is set to 0"),
    ("lumi", slurm("0", 8, **{ROCR: "0", CUDA: "0"}), 0, 8, {"own": 0, "index": 0, "count": 1, "changes": {}}, ""),
    # --gpu-bind=closest
    ("lumi", slurm("2,3", 8, **{ROCR: "2,3"}), 3, 8, {"index": 1, "own": 3, "known": None}, "2 of the step's 8 GPUs"),
    # wrappers: LUMI's select_gpu sets ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, others do so under mpirun
    ("dgx", slurm("4,5,6,7", 4, **{CUDA: "6"}), 2, 4, {"own": 6, "claims": [4, 5, 6, 7]}, ""),
    *(
        ("lumi", {**env, ROCR: "5"}, 5, 8, {"own": 5, "index": 0, "count": 1, "claims": ALL}, "")
        for env in (slurm(ALL_LISTED, 8), {})
    ),
    # ranks share what Slurm did not make for each: it gave it to torchrun, a user narrowed it, its number is not known
    *(
        ("lumi", {"SLURM_STEP_ID": "0", **env}, rank, 2, {"index": rank}, None)
        for env in (
            slurm("2,3", 4, **{ROCR: "2,3"}, **WORKER),
            slurm(ALL_LISTED, 8, **{ROCR: "0,1"}),
            {"SLURM_STEP_GPUS": "0,1", ROCR: "0,1"},
        )
        for rank in (0, 1)
    ),
    # workers of torchrun with virtual local ranks, and two on one GPU
    ("dgx", {**WORKER, CUDA: "5"}, 0, 8, {"index": 0, "own": 5, "known": 8}, ""),
    *(
        ("dgx", env, 1, 2, {}, "2 ranks on this node share 1 GPU,")  # CUDA ignores what comes after an invalid entry
        for env in (slurm("0", 1, **{CUDA: "0"}, **WORKER), slurm("0", 1, **{CUDA: "0"}), {CUDA: "0,x,1"})
    ),
    ("laptop", {CUDA: "0"}, 0, 4, {"vendor": None, "count": 0, "index": None, "own": None, "changes": {}}, ""),
    *(
        ("lumi", env, 1, len(gpus), {"index": 1, "own": gpus[1], "claims": gpus, "changes": {}}, "")
        for env, gpus in OF_USERS
    ),
    ("lumi", {HIP: "GPU-deadbeef"}, 0, 1, {"count": 0, "known": None, "changes": {}}, None),  # any of eight
    ("lumi", {HIP: "1,2", CUDA: "3"}, 0, 2, {"count": 2, "own": 1, "changes": {CUDA: "1,2"}}, ""),
    *(
        (
            *("lumi", {ROCR: rocr, **dict.fromkeys(names, value)}, 0, 1),
            {"changes": dict.fromkeys(names, changed), "count": len(changed.split(","))},
            f"{names[0]}={value} is set to {changed}",
        )
        for rocr, names, value, changed in CONTRADICTING
    ),
    *(
        ("dgx", slurm(given, on_node, **{CUDA: listed}), 0, 1, {"held": held, "own": held[0] if held else None}, None)
        for given, on_node, listed, held in OF_NODE
    ),
    ("dgx", slurm(ALL_LISTED, 8), 0, 1, {"count": 8, "own": 0}, None),  # --gpu-bind=none: no list
    ("dgx", slurm("2,3", 2), 3, 4, {"count": 2, "index": 1}, "4 ranks on this node share 2 GPUs"),
    # the beginning of a UUID names a GPU, but once
    ("dgx", {CUDA: "GPU-50000000-d72c-4106-c12f-20bd9faed9f6,GPU-3,GPU-"}, 1, 2, {"count": 2, "own": 3}, None),
    ("dgx", {CUDA: "2,1,1,3"}, 0, 1, {"count": 0}, None),
    # CUDA finds one instance of MIG, at an unknown place
    *(
        ("dgx", {CUDA: listed}, 1, 2, {"count": 1, "index": 0, "own": None, "known": None}, None)
        for listed in ("MIG-3b2a9e0f-1c5d-5e6f-8a7b-0c1d2e3f4a5b", "MIG-GPU-3/1/0,MIG-GPU-3/2/0")
    ),
]


@pytest.mark.parametrize(("node", "env", "rank", "size", "expected", "warning"), CHOICES)
def test_a_rank_has_its_turn_of_the_visible_gpus_or_its_own(request, node, env, rank, size, expected, warning):
    root = request.getfixturevalue(node)
    devices = choose_devices(env, root, rank, size)
    assert {name: value for name, value in found(root, devices).items() if name in expected} == expected
    assert warning is None or len(devices.warnings) == bool(warning)
    assert not warning or warning in str(devices.warnings[0])


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


def test_gpus_that_a_cgroup_hides_are_not_counted_and_those_of_other_ranks_are_known(tmp_path):
    root = node_trees.lumi_g(tmp_path)
    for number in (0, 1, 4, 5, 6, 7):
        node_trees.hide_amd_gpu(tmp_path, 4, number)
    for listed, index in (("0,1", 1), ("1", 0)):  # or one that a wrapper leaves
        devices = choose_devices(slurm("2,3", 2, ROCR_VISIBLE_DEVICES=listed), root, 1, 2)
        assert (devices.index, devices.gpu.pci) == (index, "0000:cc:00.0")
        assert [gpu.pci for gpu in devices.claims] == ["0000:c9:00.0", "0000:cc:00.0"]
    node_trees.hide_amd_gpu(tmp_path, 4, 2)
    devices = choose_devices(slurm("3", 8, ROCR_VISIBLE_DEVICES="0"), root, 3, 8)
    assert devices.gpu.pci == "0000:cc:00.0"
    assert [gpu.pci for gpu in devices.claims] == list(node_trees.LUMI_G)
    assert devices.gpu is devices.claims[3]
    devices = choose_devices(slurm("3", 8), root, 3, 8)  # no list at all
    assert (devices.index, devices.gpu.pci, devices.warnings) == (0, "0000:cc:00.0", [])
    node_trees.hide_amd_gpu(tmp_path, 4, 3)
    devices = choose_devices({}, root, 0, 4)
    assert (devices.vendor, devices.count, devices.index) == (None, 0, None)
    assert devices.changes == devices.narrowed() == {}


@pytest.mark.parametrize(
    ("left", "listed", "held"),
    [
        *(([4, 5, 6, 7], listed, [4, 5, 6, 7]) for listed in ("0,1,2,3", None)),
        *(([6], listed, [6]) for listed in ("0", None)),
        *(([4, 5, 6, 7], "2", [6]), ([4, 5], "1,0", [5, 4]), ([1, 2], "1", [2]), ([1, 2], "2", [])),
    ],
)
def test_cuda_counts_the_gpus_that_a_cgroup_leaves(tmp_path, left, listed, held):
    root = node_trees.node(tmp_path, cores=8, vendor="nvidia", gpus=node_trees.DGX_A100)
    node_trees.hide_nvidia_gpus(tmp_path, *(number for number in ALL if number not in left))
    devices = choose_devices(slurm("", len(left), **({CUDA: listed} if listed else {})), root, 0, 1)
    assert [gpu.pci for gpu in devices.held] == [list(node_trees.DGX_A100)[number] for number in held]
    assert (devices.count, len(devices.warnings)) == (len(held), not held)


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


def test_each_rank_gets_a_mig_instance_of_its_own(dgx):
    """A process sees the first of a list alone, so two ranks would use the same."""
    env = {"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b"}
    ranks = [choose_devices(env, dgx, rank, 3) for rank in range(3)]
    assert [devices.changes["CUDA_VISIBLE_DEVICES"] for devices in ranks] == ["MIG-a", "MIG-b", "MIG-a"]
    assert [(devices.index, devices.count) for devices in ranks] == [(0, 1)] * 3
    assert "3 ranks on this node share 2 GPUs" in str(ranks[0].warnings[0])
    assert not choose_devices(env, dgx, 1, 2).warnings
    assert "CUDA_VISIBLE_DEVICES" not in choose_devices(env, dgx, 0, 1).changes
    # torchrun starts a worker for each
    assert choose_devices(env, dgx, 0, 1).count == 2


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
    assert device(after).startswith(f"device 0 of 1 {after.vendor} (")
    if not env.get("SLURM_STEP_GPUS"):
        assert own(root, after) == own(root, devices)

"""The GPU of a rank: its turn, or what Slurm gave to it; lists of visible GPUs, of users and of cgroups."""

from pathlib import Path

import node_trees
import pytest
from placements import choose_devices, world
from pytorch_launch import devices as chooser
from pytorch_launch.topology import read_node
from tables import name, table
from variables import variables

NAMES = {"ROCR": "ROCR_VISIBLE_DEVICES", "HIP": "HIP_VISIBLE_DEVICES", "CUDA": "CUDA_VISIBLE_DEVICES"}
NAMES.update(
    STEP="SLURM_STEP_GPUS", NODE="SLURM_GPUS_ON_NODE", ORDER="CUDA_DEVICE_ORDER", TORCHRUN="TORCHELASTIC_RUN_ID"
)


def environment(text):
    """The variables of words such as `ROCR=0,1`; STEP and NODE are what Slurm reports about GPUs of task and step."""
    return {NAMES[word]: value for word, value in variables(text).items()}


ADDRESSES = {
    "lumi": list(node_trees.LUMI_G),
    "dgx": list(node_trees.DGX_A100),
    "perlmutter": list(node_trees.PERLMUTTER),
    "laptop": [],
}


def numbers(node, gpus):
    """Which GPUs of the node those are, "-" if that is not known or there are none."""
    return ",".join(str(ADDRESSES[node].index(gpu.pci)) for gpu in gpus or ()) or "-"


def check(root, row):
    """Compare the Devices of a rank with the cells of a row; one that is empty may have any value."""
    rank, size = map(int, row["rank"].split(" of "))
    devices = choose_devices(environment(row["environment"]), root, rank, size)
    texts = [str(problem) for problem in devices.warnings]
    found = {
        "index": str(devices.index),
        "held": numbers(row["node"], devices.held),
        "claims": numbers(row["node"], devices.claims),
        "changes": " ".join(f"{name}={value}" for name, value in devices.changes.items()) or "-",
        "warning": "-",
    }
    if texts:
        found["warning"] = row["warning"] if row["warning"] in texts[-1] else texts
    expected = {name: row[name] for name in found if row.get(name)}
    assert {name: found[name] for name in expected} == expected


#: Slurm's variables as seen with 22.05: only the task's own GPUs in STEP, all of the step in NODE, and with
#: --gpu-bind=none no list at all.
CASES = """
node       | environment                         | rank   | index | held | claims          | changes | warning
lumi       |                                     | 0 of 8 | 0     | 0    | 0,1,2,3,4,5,6,7 | -       | -
lumi       |                                     | 7 of 8 | 7     | 7    | 0,1,2,3,4,5,6,7 | -       | -
lumi       |                                     | 1 of 2 | 1     | 1    | 0,1             | -       | -
dgx        |                                     | 0 of 1 | 0     |      | 0,1,2,3,4,5,6,7 | CUDA_DEVICE_ORDER=PCI_BUS_ID | -
dgx        | ORDER=FASTEST_FIRST                 | 2 of 8 | 2     | -    | -               | -       | -
perlmutter |                                     | 5 of 6 | 1     | 1    | 0,1,2,3,0,1     |         | 6 ranks on this node share 4 of its GPUs
laptop     | CUDA=0                              | 0 of 4 | None  | -    | -               | -       | -
# --gpus-per-node=8
lumi       | STEP=0,1,2,3,4,5,6,7 NODE=8 ROCR=0,1,2,3,4,5,6,7 | 3 of 8 | 3 | 3 | 0,1,2,3,4,5,6,7 | - | -
dgx        | STEP=0,1,2,3,4,5,6,7 NODE=8 CUDA=0,1,2,3,4,5,6,7 | 3 of 8 | 3 | 3 | 0,1,2,3,4,5,6,7 |   | -
# --gpus-per-task=1, =2, --gpu-bind=map_gpu:7,6,5,4,3,2,1,0, more GPUs than ranks
lumi       | STEP=3 NODE=8 ROCR=3                | 3 of 8 | 0     | 3    | 0,1,2,3,4,5,6,7 | -       | -
dgx        | STEP=3 NODE=8 CUDA=3                | 3 of 8 | 0     | 3    | 0,1,2,3,4,5,6,7 |         | -
lumi       | STEP=6,7 NODE=8 ROCR=6,7            | 3 of 4 | 0     | 6,7  | 0,1,2,3,4,5,6,7 | -       | -
dgx        | STEP=4 NODE=8 CUDA=4                | 3 of 8 | 0     | 4    | 0,1,2,3,4,5,6,7 |         | -
lumi       | STEP=5 NODE=8 ROCR=5                | 2 of 4 | 0     | 5    | 0,1,2,3,4,5,6,7 | -       | -
# half of the node: shared, one GPU each; --gpu-bind=mask_gpu:0x3,0x3,0xc,0xc, --gpu-bind=closest
dgx        | STEP=0,1,2,3 NODE=4 CUDA=0,1,2,3    | 2 of 4 | 2     | 2    | 0,1,2,3         |         | -
lumi       | STEP=2 NODE=4 ROCR=2                | 2 of 4 | 0     | 2    | -               | -       | -
dgx        | STEP=0,1 NODE=4 CUDA=0,1            | 1 of 4 | 1     | 1    | -               |         | 2 of the step's 4 GPUs
lumi       | STEP=2,3 NODE=8 ROCR=2,3            | 3 of 8 | 1     | 3    | -               | -       | 2 of the step's 8 GPUs
# Slurm's generic GRES counts both lists over all GPUs
lumi       | STEP=3 NODE=8 ROCR=3 CUDA=3         | 3 of 8 | 0     | 3    |                 | CUDA_VISIBLE_DEVICES=0 | CUDA_VISIBLE_DEVICES=3 is set to 0
lumi       | STEP=0 NODE=8 ROCR=0 CUDA=0         | 0 of 8 | 0     | 0    |                 | -       | -
# wrappers with one GPU for each rank, as LUMI's select_gpu
dgx        | STEP=4,5,6,7 NODE=4 CUDA=6          | 2 of 4 | 0     | 6    | 4,5,6,7         |         | -
lumi       | STEP=0,1,2,3,4,5,6,7 NODE=8 ROCR=5  | 5 of 8 | 0     | 5    | 0,1,2,3,4,5,6,7 | -       | -
lumi       | ROCR=5                              | 5 of 8 | 0     | 5    | 0,1,2,3,4,5,6,7 | -       | -
dgx        | TORCHRUN=none CUDA=5                | 0 of 8 | 0     | 5    | 0,1,2,3,4,5,6,7 |         | -
# shared by the workers of torchrun, narrowed by the user, of unknown number
lumi       | STEP=2,3 NODE=4 ROCR=2,3 TORCHRUN=none | 1 of 2 | 1  | 3    | 2,3             | -       | -
lumi       | STEP=0,1,2,3,4,5,6,7 NODE=8 ROCR=0,1 | 1 of 2 | 1    | 1    | 0,1             | -       | -
lumi       | STEP=0,1 ROCR=0,1                   | 1 of 2 | 1     | 1    | 0,1             | -       | -
dgx        | STEP=0 NODE=1 CUDA=0 TORCHRUN=none  | 1 of 2 | 0     | 0    | 0,0             |         | 2 ranks on this node share 1 of its GPUs
dgx        | STEP=0 NODE=1 CUDA=0                | 1 of 2 | 0     | 0    | 0,0             |         | 2 ranks on this node share 1 of its GPUs
# lists of users: HIP's counts what ROCR's leaves
lumi       | ROCR=7,2,5                          | 1 of 3 | 1     | 2    | 7,2,5           | -       | -
lumi       | HIP=7,2,5                           | 1 of 3 | 1     | 2    | 7,2,5           | -       | -
lumi       | CUDA=7,2,5                          | 1 of 3 | 1     | 2    | 7,2,5           | -       | -
lumi       | ROCR=4,5,6,7 HIP=3,1                | 1 of 2 | 1     | 5    | 7,5             | -       | -
lumi       | ROCR=GPU-DEADBEEF00000005,GPU-deadbeef00000001 | 1 of 2 | 1 | 1 | 5,1           | -       | -
lumi       | HIP=GPU-DEADBEEF00000005,GPU-deadbeef00000001  | 1 of 2 | 1 | 1 | 5,1           | -       | -
lumi       | HIP=1,2 CUDA=3                      | 0 of 2 | 0     | 1    | 1,2             | CUDA_VISIBLE_DEVICES=1,2 | -
lumi       | ROCR=3 CUDA=3                       | 0 of 1 | 0     | 3    | 3               | CUDA_VISIBLE_DEVICES=0 | CUDA_VISIBLE_DEVICES=3 is set to 0
lumi       | ROCR=4,5,6,7 HIP=6,4                | 0 of 1 | 0     | 6,4  |                 | HIP_VISIBLE_DEVICES=2,0 | HIP_VISIBLE_DEVICES=6,4 is set to 2,0
lumi       | ROCR=4,5 CUDA=0,1,2                 | 0 of 1 | 0     | 4,5  |                 | CUDA_VISIBLE_DEVICES=0,1 | CUDA_VISIBLE_DEVICES=0,1,2 is set to 0,1
# without cgroups, or a list, CUDA sees the GPUs of other jobs
dgx        | STEP=4,5,6,7 NODE=4 CUDA=7,4        | 0 of 1 | 0     | 7,4  |                 |         | -
dgx        | STEP=1,2 NODE=2 CUDA=5              | 0 of 1 | 0     | 5    |                 |         | -
dgx        | STEP=0,1 NODE=2                     | 0 of 1 | 0     | 0,1  |                 |         | -
dgx        | STEP=2,3 NODE=2                     | 3 of 4 | 1     |      |                 |         | 4 ranks on this node share 2 of its GPUs
# where a list ends: on purpose, at what is no GPU (also the beginning of several UUIDs), at a repeated one
lumi       | ROCR=-1                             | 0 of 1 | None  | -    | -               | -       | -
dgx        | CUDA=NoDevFiles                     | 0 of 1 | None  | -    | -               |         | -
lumi       | CUDA=0,2,-1,1                       | 0 of 1 | 0     | 0,2  |                 | -       | -
dgx        | CUDA=0,9,1                          | 0 of 1 | 0     | 0    |                 |         | CUDA_VISIBLE_DEVICES=0,9,1: entry 9 matches none of the 8 GPUs here, so this rank sees 1 of them
lumi       | ROCR=0,x                            | 0 of 1 | 0     | 0    |                 | -       | ROCR_VISIBLE_DEVICES=0,x: entry x matches none of the 8 GPUs
lumi       | HIP=99                              | 0 of 1 | None  | -    | -               | -       | entry 99 matches none of the 8 GPUs here, so this rank sees 0 of them
lumi       | HIP=GPU-deadbeef                    | 0 of 1 | None  | -    | -               | -       | entry GPU-deadbeef matches none
dgx        | CUDA=GPU-50000000-d72c,GPU-3,GPU-   | 0 of 1 | 0     | 5,3  |                 |         | entry GPU- matches none
lumi       | ROCR=2,1,1,3                        | 0 of 1 | 0     | 2,1  |                 | -       | entry 1 repeats a GPU of the list, so this rank sees 2 of them
dgx        | CUDA=2,1,1,3                        | 0 of 1 | None  | -    | -               |         | entry 1 repeats a GPU of the list, so this rank sees 0 of them
dgx        | ROCR=99 HIP=99                      | 0 of 1 | 0     |      | 0,1,2,3,4,5,6,7 |         | -
# CUDA finds one instance of MIG, at an unknown place
dgx        | CUDA=MIG-3b2a9e0f-1c5d              | 1 of 2 | 0     | -    | -               |         | -
dgx        | CUDA=MIG-GPU-3/1/0,MIG-GPU-3/2/0    | 1 of 2 | 0     | -    | -               | CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=MIG-GPU-3/2/0 | -
dgx        | CUDA=MIG-a,MIG-b                    | 2 of 3 | 0     | -    | -               | CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=MIG-a | 3 ranks on this node share 2 of its GPUs
dgx        | CUDA=MIG-a,MIG-b                    | 0 of 1 | 0     | -    | -               | CUDA_DEVICE_ORDER=PCI_BUS_ID | -
"""  # noqa: E501


@pytest.mark.parametrize("row", table(CASES), ids=name)
def test_a_rank_has_its_turn_of_the_visible_gpus_or_its_own(request, row):
    check(request.getfixturevalue(row["node"]), row)


IN_CGROUPS = """
node | left    | environment              | rank   | index | held    | claims          | warning
lumi | 2,3     | STEP=2,3 NODE=2 ROCR=0,1 | 1 of 2 | 1     | 3       | 2,3             | -
lumi | 2,3     | STEP=2,3 NODE=2 ROCR=1   | 1 of 2 | 0     | 3       | 2,3             | -
lumi | 3       | STEP=3 NODE=8 ROCR=0     | 3 of 8 | 0     | 3       | 0,1,2,3,4,5,6,7 | -
lumi | 3       | STEP=3 NODE=8            | 3 of 8 | 0     | 3       | 0,1,2,3,4,5,6,7 | -
lumi |         |                          | 0 of 4 | None  | -       | -               | -
dgx  | 4,5,6,7 | NODE=4 CUDA=0,1,2,3      | 0 of 1 | 0     | 4,5,6,7 | 4,5,6,7         | -
dgx  | 4,5,6,7 | NODE=4                   | 0 of 1 | 0     | 4,5,6,7 | 4,5,6,7         | -
dgx  | 6       | NODE=1 CUDA=0            | 0 of 1 | 0     | 6       | 6               | -
dgx  | 4,5     | NODE=2 CUDA=1,0          | 0 of 1 | 0     | 5,4     | 5,4             | -
dgx  | 1,2     | NODE=2 CUDA=2            | 0 of 1 | None  | -       | -               | entry 2 matches none of the 2 GPUs
"""  # noqa: E501


@pytest.mark.parametrize("row", table(IN_CGROUPS), ids=name)
def test_gpus_that_a_cgroup_hides_are_not_counted_and_those_of_other_ranks_are_known(tmp_path, row):
    hidden = [number for number in range(8) if str(number) not in row["left"].split(",")]
    if row["node"] == "lumi":
        root = node_trees.lumi_g(tmp_path)
        for number in hidden:
            node_trees.hide_amd_gpu(tmp_path, 4, number)
    else:
        root = node_trees.node(tmp_path, cores=8, vendor="nvidia", gpus=node_trees.DGX_A100)
        node_trees.hide_nvidia_gpus(tmp_path, *hidden)
    check(root, row)


def exporting(directory, pid, value):
    """A node where the process `pid`, which started the ranks, has a list of visible GPUs."""
    root = node_trees.node(directory, cores=8, vendor="nvidia", gpus=node_trees.DGX_A100)
    node_trees.write(Path(root, f"proc/{pid}/environ"), f"HOME=/\0CUDA_VISIBLE_DEVICES={value}\0")
    return read_node(root)._replace(launcher=7, parent=8)


@pytest.mark.parametrize(
    ("pid", "value", "exported", "is_shared"),
    [
        (7, "0", False, True),
        (7, "MIG-a", False, True),
        (8, "0", True, True),
        (7, "1", False, False),  # a wrapper has changed it
        (8, "0", False, False),  # a shell that mpirun started, with a rank of its own
    ],
)
def test_one_gpu_that_is_exported_to_several_ranks_is_worth_a_warning(tmp_path, pid, value, exported, is_shared):
    env = {"CUDA_VISIBLE_DEVICES": value.replace("1", "0")}
    devices = chooser.choose_devices(env, exporting(tmp_path, pid, value), world(1, 2, exported=exported))
    assert [str(problem)[:39] for problem in devices.warnings] == [
        "2 ranks on this node share 1 of its GPUs"[:39]
    ] * is_shared


NARROWED = """
node | environment            | narrowed
lumi |                        | ROCR=1
lumi | ROCR=4,5,6,7           | ROCR=5
lumi | ROCR=4,5 HIP=1,0       | HIP=0
lumi | ROCR=4,5 CUDA=4,5      | CUDA=1
lumi | HIP=6,7 CUDA=0         | HIP=7 CUDA=7
lumi | ROCR=3                 |
dgx  |                        | CUDA=1
dgx  | CUDA=GPU-5,GPU-3       | CUDA=GPU-3
dgx  | STEP=4,5 NODE=2 CUDA=0,1 | CUDA=1
"""


@pytest.mark.parametrize("row", table(NARROWED), ids=name)
def test_a_rank_can_be_left_with_its_gpu_alone(request, row):
    root, env = request.getfixturevalue(row["node"]), environment(row["environment"])
    devices = choose_devices(env, root, 1, 2)
    assert devices.narrowed() == environment(row["narrowed"])
    env.update(devices.changes, **devices.narrowed())
    after = choose_devices(env, root, 1, 2)
    assert (after.count, after.index) == (1, 0)
    assert after.gpu == devices.gpu or "STEP" in row["environment"]

"""The pictures of the pages: on a page, and true to the launcher."""

import re
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from repository import TREE

# the launcher is a command, and no installed package; the nodes are those of its tests, which name their sources
sys.path[1:1] = [str(TREE / "runscripts"), str(TREE / "tests" / "unit" / "runscripts")]
import node_trees  # noqa: E402
from pytorch_launch.caches import SUBDIRECTORIES  # noqa: E402
from pytorch_launch.plan import make_plan  # noqa: E402
from pytorch_launch.topology import cpu_list, read_node  # noqa: E402

PAGES = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]
PICTURES = sorted((TREE / "docs" / "pictures").iterdir())
#: Width of a square that stands for a core.
SQUARE = "23"


def test_every_picture_is_on_a_page():
    shown = set()
    for page in PAGES:
        targets = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        shown.update((page.parent / target).resolve() for target in targets)
    assert set(PICTURES) == shown


def words(name):
    """The words of a picture, in their order."""
    parts = ElementTree.parse(TREE / "docs" / "pictures" / f"{name}.svg").iter()  # noqa: S314  (our own picture)
    return [part.text for part in parts if part.tag.endswith("}text")]


def plan_of(root, allowed, local_rank, per_node, node=0):
    """The plan of a rank of a step on two nodes whose hardware is that of `root`, with the CPUs `allowed`."""
    hosts = "nid005001", "nid005002"
    env = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "nid[005001-005002]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": str(per_node * 2),
        "SLURM_STEP_TASKS_PER_NODE": f"{per_node}(x2)",
        "SLURM_PROCID": str(node * per_node + local_rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_CPUS_ON_NODE": str(len(allowed)),
        "SLURM_GPUS_ON_NODE": str(per_node),
        "SLURMD_NODENAME": hosts[node],
        "TMPDIR": "/tmp",  # noqa: S108  (nothing is written)
    }
    return make_plan(env, read_node(root, allowed=set(allowed))._replace(host=hosts[node], launcher=4710, uid=1000))


#: The masks that LUMI publishes, of GPUs 0 to 7; Frontier's nodes are the same.
MASKS = dict(enumerate(["49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"]))


@pytest.mark.parametrize(
    ("system", "write_node", "allowed", "masks"),
    [
        ("lumi", node_trees.lumi_g, node_trees.JOB_CORES, MASKS),
        ("frontier", node_trees.frontier, node_trees.JOB_CORES, MASKS),
        ("perlmutter", node_trees.perlmutter, set(range(128)), {0: "48-63", 1: "32-47", 2: "16-31", 3: "0-15"}),
    ],
)
def test_the_picture_of_a_node_shows_what_the_launcher_decides(system, write_node, allowed, masks, tmp_path):
    plans = [plan_of(write_node(tmp_path / str(rank)), allowed, rank, len(masks)) for rank in masks]
    assert {rank: cpu_list(set(cores)) for rank, cores in numbers_in_squares(f"node-{system}").items()} == masks
    shown = words(f"node-{system}")
    for rank, plan in enumerate(plans):
        place = shown.index(f"rank {rank}: GPU {plan.devices.index}")
        assert shown[place + 1 : place + 3] == [
            plan.devices.gpu.pci.partition(":")[2],
            f"CPUs {cpu_list(plan.placement.bind)}",
        ]


def numbers_in_squares(name):
    """The cores of each rank: squares in the order of the cores, with or without a rank."""
    parts = list(ElementTree.parse(TREE / "docs" / "pictures" / f"{name}.svg").iter())  # noqa: S314  (our own picture)
    squares = [
        after.text
        for part, after in zip(parts, parts[1:])
        if part.get("width") == SQUARE and part.get("height") == SQUARE
    ]
    cores = {}
    for core, word in enumerate(squares):
        if word:
            cores.setdefault(int(word), []).append(core)
    return cores


def test_the_picture_of_a_rank_shows_what_the_launcher_decides(tmp_path):
    plan = plan_of(node_trees.lumi_g(tmp_path), node_trees.JOB_CORES, 3, 8, node=1)
    shown = {word for word in words("rank") if re.match("[A-Z_]+=", word) and not word.startswith("SLURM_")}
    caches = {name: f"…/{plan.changes[name].rpartition('/')[2]}" for name in SUBDIRECTORIES}
    given = {name: value for name, value in plan.changes.items() if name not in plan.dumps.variables}
    assert shown == {f"{name}={value}" for name, value in {**given, **caches}.items()}
    assert f"bound to CPUs {cpu_list(plan.placement.cpus)}" in words("rank")
    assert f"in {plan.caches.directory}:" in words("rank")

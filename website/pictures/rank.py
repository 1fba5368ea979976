"""Draws what one rank is given, and from what the launcher decides it."""

import tempfile
from pathlib import Path

from website.pictures.canvas import FILLS, PLAIN, Canvas
from website.pictures.launcher import HOSTS, cpu_list, node_trees, plan_of

LOCAL_RANK, PER_NODE, NODE = 3, 8, 1
#: The variables of Slurm that identify a rank; others only say what belongs to the step.
SLURM = ("JOB_ID", "STEP_NODELIST", "STEP_NUM_TASKS", "STEP_TASKS_PER_NODE", "PROCID", "LOCALID", "NODEID")
MARGIN, TITLE, LINE, GAP = 14, 54, 18, 14
BOX, RIGHT, WIDTH = 296, 346, 696


def draw():
    """The picture as SVG text."""
    with tempfile.TemporaryDirectory() as directory:
        root = node_trees.lumi_g(Path(directory))
        plan = plan_of(root, node_trees.JOB_CORES, LOCAL_RANK, PER_NODE, node=NODE)
        groups = group(plan)
    height = TITLE + sum(box_height(*lines) + GAP for _, *lines in groups)
    canvas = Canvas(WIDTH, height, f"What rank {plan.world.rank} is given")
    canvas.text(MARGIN, 24, f"What rank {plan.world.rank} of {plan.world.size} is given", size=15, bold=True)
    canvas.text(MARGIN, 43, f"srun -N{len(HOSTS)} --ntasks-per-node={PER_NODE} on LUMI-G", size=12, mono=True)
    y = TITLE
    for fill, (title, read, given) in zip(FILLS, groups):
        draw_group(canvas, y, fill, title, read, given)
        y += box_height(read, given) + GAP
    return canvas.svg()


def group(plan):
    """For each source a title, lines of what is read, and lines of what it decides; all variables of the plan."""
    caches, changes = plan.caches, dict(plan.changes)
    of_caches = [f"{name}=…/{changes.pop(name).rpartition('/')[2]}" for name in caches.variables]
    threads = f"OMP_NUM_THREADS={changes.pop('OMP_NUM_THREADS')}"
    gpu, placement = plan.devices.gpu, plan.placement
    slurm = [f"SLURM_{name}={plan.env[f'SLURM_{name}']}" for name in SLURM]
    hardware = [
        f"GPU {plan.devices.index} is {gpu.pci}",
        f"on NUMA node {gpu.numa_node}",
        f"its CPUs: {cpu_list(placement.node.numa[gpu.numa_node])}",
    ]
    user = [f"user {caches.uid}, TMPDIR={caches.base}", f"job {plan.world.job} on {plan.world.node}"]
    return [
        ("the step of Slurm", slurm, [f"{name}={value}" for name, value in changes.items()]),
        ("the node, from /sys", hardware, [
            f"device {plan.devices.index}", f"bound to CPUs {cpu_list(placement.cpus)}", threads,
        ]),
        ("user, job and node", user, [f"in {caches.directory}:", *of_caches]),
    ]  # fmt: skip


def box_height(read, given):
    """The height of a group: a title, and the longer of both lists."""
    return LINE * (max(len(read) + 1, len(given)) + 1)


def draw_group(canvas, y, fill, title, read, given):
    """A box with what is read, and an arrow to a box with what it decides."""
    height = box_height(read, given)
    canvas.rectangle(MARGIN, y, BOX, height, fill=PLAIN)
    canvas.text(MARGIN + 10, y + 21, title, bold=True)
    for number, line in enumerate(read, 1):
        canvas.text(MARGIN + 10, y + 21 + LINE * number, line, size=12, mono=True, end=MARGIN + BOX)
    canvas.arrow(MARGIN + BOX + 4, y + height / 2, RIGHT - 4, y + height / 2)
    canvas.rectangle(RIGHT, y, WIDTH - MARGIN - RIGHT, height, fill=fill)
    for number, line in enumerate(given):
        canvas.text(RIGHT + 10, y + 21 + LINE * number, line, size=12, mono=True, end=WIDTH - MARGIN)

"""Draws the cores and GPUs of a node, and which rank gets which, as the launcher decides there."""

import tempfile
from pathlib import Path

from website.pictures.canvas import FILLS, PLAIN, Canvas
from website.pictures.launcher import cpu_list, node_trees, plan_of

#: Of each system: its name, a function that writes a node as a directory tree, the CPUs that all ranks of a node have
#: in common, the number of ranks, and further options of srun. A mask that Slurm gives a rank is kept, as with the
#: options of Frontier's guide, so for Frontier the options are others.
SYSTEMS = {
    "lumi": ("LUMI-G", node_trees.lumi_g, node_trees.JOB_CORES, 8, ""),
    "frontier": ("Frontier", node_trees.frontier, node_trees.JOB_CORES, 8, " --gpus-per-node=8 --cpu-bind=none"),
    "perlmutter": ("Perlmutter", node_trees.perlmutter, set(range(128)), 4, " --gpus-per-node=4"),
}
MARGIN, TITLE, CAPTION = 14, 80, 22
CELL, IN_ROW, GAP = 26, 8, 14
#: Where the numbers of the cores end, where the cores begin, the GPUs, and the CPUs of their ranks.
NUMBERS, CORES, GPUS, MASKS, WIDTH = 40, 46, 276, 486, 640


def draw(name):
    """The picture of a system as SVG text."""
    title, write_node, allowed, ranks, options = SYSTEMS[name]
    with tempfile.TemporaryDirectory() as directory:
        root = write_node(Path(directory))
        plans = [plan_of(root, allowed, rank, ranks) for rank in range(ranks)]
        node = plans[0].placement.node
        empty = any(not set(cpus) & allowed for cpus in node.cores(node.online))
        areas = {number: node.cores(cpus) for number, cpus in node.numa.items()}
        homes = {number: [plan for plan in plans if plan.devices.gpu.numa_node == number] for number in areas}
    heights = {number: CAPTION + -(-len(cores) // IN_ROW) * CELL + GAP for number, cores in areas.items()}
    canvas = Canvas(WIDTH, TITLE + sum(heights.values()), f"The cores and GPUs of each rank on a node of {title}")
    canvas.text(MARGIN, 24, f"A node of {title} with {ranks} ranks", size=15, bold=True)
    canvas.text(MARGIN, 43, f"srun --ntasks-per-node={ranks}{options}", size=12, mono=True)
    note = "; empty: not for jobs" if empty else ""
    canvas.text(MARGIN, 64, f"A square is a core, the number in it the local rank that runs there{note}")
    y = TITLE
    for number, cores in areas.items():
        draw_cores(canvas, y, number, cores, plans)
        draw_gpus(canvas, y, homes[number])
        y += heights[number]
    return canvas.svg()


def draw_cores(canvas, y, number, cores, plans):
    """The cores of a NUMA node, each with its rank; `cores` are lists of CPUs."""
    canvas.text(CORES, y + 14, f"NUMA node {number}", bold=True)
    for position, cpus in enumerate(cores):
        row, column = divmod(position, IN_ROW)
        x, top = CORES + column * CELL, y + CAPTION + row * CELL
        if column == 0:
            canvas.text(NUMBERS, top + 17, str(cpus[0]), size=12, anchor="end")
        ranks = [plan.world.local_rank for plan in plans if plan.bind & set(cpus)]
        canvas.rectangle(x, top, CELL - 3, CELL - 3, fill=FILLS[ranks[0]] if ranks else PLAIN)
        canvas.text(x + CELL / 2 - 1.5, top + 16, ",".join(map(str, ranks)), size=12, anchor="middle")


def draw_gpus(canvas, y, plans):
    """The GPUs of a NUMA node, each with its rank and the CPUs of this rank's mask."""
    for position, plan in enumerate(plans):
        top, rank = y + CAPTION + position * CELL, plan.world.local_rank
        canvas.rectangle(GPUS, top, MASKS - GPUS - 12, CELL - 3, fill=FILLS[rank])
        canvas.text(GPUS + 8, top + 16, f"rank {rank}: GPU {plan.devices.index}", size=12, bold=True)
        canvas.text(MASKS - 20, top + 16, plan.devices.gpu.pci.partition(":")[2], size=12, mono=True, anchor="end")
        canvas.text(MASKS, top + 16, f"CPUs {cpu_list(plan.bind)}", size=12)

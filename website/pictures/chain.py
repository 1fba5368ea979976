"""Draws the chain from a recipe to the ranks, with the files of the tree and the three lines of README.md."""

import ast
import re
from pathlib import Path

from benchmarks.svg import MET
from website.pictures.canvas import FILLS, Canvas

TREE = Path(__file__).resolve().parents[2]
MARGIN, BOX_WIDTH, BOX_HEIGHT, WIDTH = 12, 112, 46, 640
#: Height of an arrow, and of a line beside it.
ARROW, LINE = 28, 16


def draw():
    """The picture as SVG text."""
    install, load, launch = three_lines((TREE / "README.md").read_text(encoding="utf-8"))
    recipe = next((TREE / "easyconfigs").rglob(install.split()[-1]))
    runscript, script = re.search(r"(conda-python-distributed) .*?(\S+)$", launch).groups()
    lines = len(recipe.read_text(encoding="utf-8").splitlines())
    boxes = [
        ("recipe", f"what to install: {lines} lines of data", in_tree(recipe)),
        ("easyblock", "how to install it", in_tree(easyblock_of(recipe))),
        ("module", "what users see: variables and commands; the policy of the cluster", load.split()[-1]),
        ("runscript", "once per rank: rank, master, GPU, cores, caches", in_tree(TREE / "runscripts" / runscript)),
        ("ranks", f"the training, in {count_ranks(launch)} processes", script),
    ]
    start, _, rest = launch.partition(runscript)
    launch_lines = [load, f"{start}\\", f"    {runscript}{rest}"]
    steps = [[install], ["installs, and writes the module"], launch_lines, ["exec python"]]
    height = 2 * MARGIN + len(boxes) * BOX_HEIGHT + sum(ARROW + LINE * len(labels) for labels in steps)
    canvas = Canvas(WIDTH, height, "From a recipe to the ranks")
    y = MARGIN
    for number, (box, labels) in enumerate(zip(boxes, [*steps, None])):
        draw_box(canvas, y, FILLS[number], *box)
        y += BOX_HEIGHT
        if labels:
            draw_step(canvas, y, labels)
            y += ARROW + LINE * len(labels)
    return canvas.svg()


def draw_box(canvas, y, fill, name, purpose, example):
    """A link of the chain: its name, what it is for, and a file or name of the tree."""
    canvas.rectangle(MARGIN, y, BOX_WIDTH, BOX_HEIGHT, fill=fill)
    canvas.text(MARGIN + BOX_WIDTH / 2, y + 28, name, size=15, bold=True, anchor="middle")
    canvas.text(MARGIN + BOX_WIDTH + 16, y + 19, purpose)
    canvas.text(MARGIN + BOX_WIDTH + 16, y + 39, example, size=12, mono=True)


def draw_step(canvas, y, labels):
    """An arrow down from a box that ends at `y`, with what runs there."""
    middle = MARGIN + BOX_WIDTH / 2
    canvas.arrow(middle, y + 3, middle, y + ARROW + LINE * len(labels) - 3)
    for number, label in enumerate(labels):
        canvas.text(middle + 14, y + ARROW / 2 + 12 + LINE * number, label, size=12, mono=True, colour=MET)


def three_lines(readme):
    """The commands of the section "The three lines": to install, to load, to launch."""
    section = readme.partition("\n## The three lines\n")[2].partition("\n## ")[0]
    return re.findall(r"^    (.*)$", section, re.MULTILINE)[:3]


def easyblock_of(recipe):
    """The file of the easyblock that a recipe names: EB_PyTorchContainer is in pytorchcontainer.py."""
    for statement in ast.parse(recipe.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and statement.targets[0].id == "easyblock":
            name = ast.literal_eval(statement.value).partition("_")[2].lower()
            return TREE / "easyblocks" / f"{name}.py"
    raise ValueError(f"{recipe} names no easyblock")


def count_ranks(launch):
    """The number of tasks of a srun with -N and --ntasks-per-node."""
    nodes, tasks = re.search(r"-N(\d+) --ntasks-per-node=(\d+)", launch).groups()
    return int(nodes) * int(tasks)


def in_tree(file):
    """The path of a file in the tree. Raises FileNotFoundError if it does not exist."""
    return file.resolve(strict=True).relative_to(TREE).as_posix()

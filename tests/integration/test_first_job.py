"""docs/first-job.md, word by word: a script of the user's own, alone, on two nodes, and resumed."""

import re
from pathlib import Path

import pytest

from testbed.recipes import VENV, module

pytestmark = pytest.mark.testbed

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "first-job.md").read_text()


def block(language):
    """The page's block of code in a language."""
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


def test_the_page_leads_to_a_training_on_two_nodes_that_resumes(testbed, venv, work):
    (work / "train.py").write_text(block("python"))
    (work / "train.job").write_text(block("bash"))
    load = f"module load {module(VENV)}"
    assert load in PAGE
    alone = testbed.run(f"{load}\nconda-python-distributed train.py", cwd=work).splitlines()
    assert len(alone) == 10 and alone[-1].startswith("epoch 10: world size 1, loss ")
    # the page has two ranks on each node
    testbed.run(f"{load}\nsbatch --wait --ntasks-per-node=1 train.job", cwd=work)
    (output,) = work.glob("train-*.out")
    lines = output.read_text().splitlines()
    assert lines[0] == "resuming after epoch 10"
    assert re.fullmatch(r"epoch 20: world size 2, loss \d\.\d+", lines[-1]), lines
    losses = [float(line.split()[-1]) for line in (*alone, *lines[1:])]
    assert losses[-1] < 0.05 and losses == sorted(losses, reverse=True), "the loss falls"

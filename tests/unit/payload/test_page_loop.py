"""The program of docs/own-training.md, typed into a file: two ranks stop in the middle of an epoch and go on."""

import re
import textwrap

import pytest
import torch
from launching import PAYLOAD, REPOSITORY, launch
from small_runs import equal

pytestmark = pytest.mark.slow

#: A rank receives a signal at a step; with a small vision transformer in place of the page's regression, if wanted.
CODE = """
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
import page

class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 16, kernel_size=7, stride=7)
        self.places = nn.Parameter(torch.zeros(16, 16))
        layer = nn.TransformerEncoderLayer(16, nhead=2, dim_feedforward=32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=1, enable_nested_tensor=False)
        self.last = nn.Linear(16, 10)

    def forward(self, images):
        words = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.last(self.layers(words).mean(dim=1))

def images():
    numbers = torch.Generator().manual_seed(1)
    labels = torch.randint(10, (320,), generator=numbers)
    return TensorDataset(torch.randn(320, 1, 28, 28, generator=numbers), labels)

def agreed(self, now=False, agreed=page.StopSignals.agreed):
    if not now and (os.environ["RANK"], self.calls) == ("1", {strike}):
        os.kill(os.getpid(), signal.SIGUSR1)
    return agreed(self, now=now)

page.StopSignals.agreed = agreed
if {is_transformer}:
    page.make_data = images
    page.make_network = Transformer
    page.F.mse_loss = nn.functional.cross_entropy
with page.fail_in_one_line():
    with page.process_group(os.environ, use_gpu=False, timeout=60) as world, page.StopSignals(world) as stop:
        page.train(world, stop, epochs=3)
"""


@pytest.fixture
def page(tmp_path):
    """A directory with the program of the page."""
    text = (REPOSITORY / "docs" / "own-training.md").read_text()
    program = re.search(r"^    import os\n.*?(?=^- )", text, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "page.py").write_text(textwrap.dedent(program))
    return tmp_path


def train(page, directory, *, is_transformer, strike=-1, status=0):
    (page / directory).mkdir(exist_ok=True)
    code = f"import os; os.chdir({str(page / directory)!r})\n" + CODE.format(
        strike=strike, is_transformer=is_transformer
    )
    return launch(2, "-c", code, PYTHONPATH=f"{PAYLOAD}:{page}").wait(status)


def newest(page, directory):
    path = sorted((page / directory / "run" / "checkpoints").glob("epoch-*"))[-1]
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("is_transformer", [False, True])
def test_a_run_that_was_stopped_in_an_epoch_ends_as_one_that_was_not(page, is_transformer):
    through = train(page, "through", is_transformer=is_transformer)
    before = train(page, "parts", is_transformer=is_transformer, strike=25, status=75)
    stopped = newest(page, "parts")["position"]
    assert (stopped["epoch"], stopped["step"], stopped["samples"]) == (1, 11, 11 * 16)  # of 20 steps
    after = train(page, "parts", is_transformer=is_transformer)
    assert before[0].stdout + after[0].stdout == through[0].stdout, "the losses of the epochs"
    for part in ("model", "optimizer"):
        assert equal(newest(page, "through")[part], newest(page, "parts")[part])


def test_the_program_of_the_page_runs_as_it_is(page, run_alone):
    rank = run_alone(script=page / "page.py", cwd=page, PYTHONPATH=str(PAYLOAD))
    assert "epoch 5  loss " in rank.stdout

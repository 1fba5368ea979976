"""The ladder from the notebook to many ranks: its programs differ in little, and lead to the same result."""

import difflib
import gzip
import json
import re

import pytest
import torch
from launching import PAYLOAD, launch, run_ranks

pytestmark = pytest.mark.slow

LINES = re.compile(
    r"""(?P<first>.*device \w+, torch \S+, data .*)
epoch 1/2  loss (?P<loss>\d\.\d{4})  test accuracy \d+\.\d\d %  images/s \d+
epoch 2/2  loss (?P<last_loss>\d\.\d{4})  test accuracy (?P<accuracy>\d+\.\d\d) %  images/s \d+
test accuracy: (?P=accuracy) %
"""
)

#: Frontier's line, of each rank and epoch.
OF_A_RANK = r"^\[CPU(\d)\] Epoch (\d) \| Batchsize: (\d+) \| Steps: (\d+)\n"
LADDER = PAYLOAD / "ladder"
SINGLE = LADDER / "mnist_single.py"
MULTI = LADDER / "mnist_multi.py"


def cells(notebook):
    """The code of a notebook, cell by cell."""
    return [
        "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"
    ]


def code(path):
    """The lines of a notebook's code cells, or of a script after its docstring, without indentation and blanks."""
    text = "\n".join(cells(path)) if path.suffix == ".ipynb" else path.read_text().split('"""', 2)[2]
    return [line.strip() for line in text.splitlines() if line.strip()]


def differences(one, other):
    """The lines that are in the first alone, and those that are in the second alone."""
    changes = list(difflib.ndiff(code(one), code(other)))
    return [[line[2:] for line in changes if line.startswith(sign)] for sign in "-+"]


@pytest.mark.parametrize(
    ("one", "other", "most"),
    # the notebook has options in place of a command line
    [("mnist.ipynb", "mnist_single.py", (15, 25)), ("mnist_single.py", "mnist_multi.py", (25, 45))],
)
def test_neighbouring_programs_differ_in_few_lines(one, other, most):
    lines = differences(LADDER / one, LADDER / other)
    assert all(len(found) <= limit for found, limit in zip(lines, most)), "\n".join(map(str, lines))


def test_a_notebook_as_it_is_handed_out_has_no_output():
    notebook = json.loads((LADDER / "mnist.ipynb").read_text())
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, write_mnist):
    """What the programs printed on the same 132 images, in batches of which the last has 12: by name and world size."""
    root = tmp_path_factory.mktemp("ladder")
    options = ("--data", write_mnist(root / "mnist", 132, 31), "--epochs", 2, "--batch-size", 24)
    worlds = [("mnist_single.py", 1), ("mnist_multi.py", 1), ("mnist_multi.py", 3)]
    return {
        (name, size): run_ranks(size, *options, "--modelpath", root / f"{name}-{size}", script=LADDER / name)
        for name, size in worlds
    }


def test_every_program_prints_the_lines_of_the_others_and_ends_where_they_end(trained):
    outcomes = {}
    for world, ranks in trained.items():
        assert [rank.stderr for rank in ranks] == [""] * world[1], world
        texts = [re.sub(OF_A_RANK, "", rank.stdout, flags=re.MULTILINE) for rank in ranks]
        assert texts[1:] == [""] * (world[1] - 1)
        outcomes[world] = LINES.fullmatch(texts[0])
        assert outcomes[world], ranks[0].stdout
    alone = outcomes.pop(("mnist_single.py", 1))
    for (_, size), outcome in outcomes.items():
        assert outcome["first"].startswith(f"world size {size}, device ")
        for name in ("loss", "last_loss"):
            assert float(outcome[name]) == pytest.approx(float(alone[name]), abs=0.0003)
        assert outcome["accuracy"] == alone["accuracy"]


def test_each_rank_of_many_prints_its_share_and_its_steps(trained):
    ranks = trained["mnist_multi.py", 3]
    found = [re.findall(OF_A_RANK, rank.stdout, flags=re.MULTILINE) for rank in ranks]
    assert found == [[(str(rank), epoch, "8", "6") for epoch in "12"] for rank in range(3)]


def independent_loop(single, data, epochs, batch_size):
    """The mean loss of the last epoch, with plain tensors, without a DataLoader or ranks."""
    images, labels = data.tensors
    torch.manual_seed(0)
    model = single.build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    steps = epochs * -(-len(labels) // batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        losses = []
        for batch in order.split(batch_size):
            loss = torch.nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses += [loss.item()] * len(batch)
    return sum(losses) / len(losses)


def test_the_programs_end_where_an_independent_loop_ends(trained, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(LADDER)
    import mnist_single

    (rank,) = trained["mnist_single.py", 1]
    directory = re.search(r"data (\S+)$", rank.stdout, re.MULTILINE)[1]
    train_set = mnist_single.load_mnist(type(PAYLOAD)(directory), "train", 0)
    loss = independent_loop(mnist_single, train_set, 2, 24)
    assert float(LINES.fullmatch(rank.stdout)["last_loss"]) == pytest.approx(loss, abs=0.0003)


@pytest.mark.parametrize("size", [1, 2])
def test_a_training_that_ends_after_an_epoch_resumes_and_reaches_the_same_loss(trained, small_mnist, tmp_path, size):
    line = ["--data", small_mnist, "--batch-size", 26, "--epochs", 3, "--modelpath", tmp_path / "run"]
    script = SINGLE if size == 1 else MULTI
    through = run_ranks(size, *line[:-1], tmp_path / "through", script=script)[0].stdout
    ranks = launch(size, script, *line)
    ranks.wait_until_said("epoch 1/3")
    ranks.wait_until((tmp_path / "run" / "checkpoint.pt").exists)
    ranks.kill()
    ranks.wait()
    resumed = run_ranks(size, *line, script=script)[0].stdout
    assert re.search(r"^resuming after [12] epochs$", resumed, re.MULTILINE)
    last = re.compile(r"^epoch 3/3  loss (\S+)  test accuracy (\S+)", re.MULTILINE)
    assert last.findall(resumed) == last.findall(through)
    other = run_ranks(size, *line, "--lr", 0.5, script=script, status=1)
    assert "checkpoint.pt: written with {" in other[0].stderr


def test_a_batch_that_the_ranks_do_not_divide_is_an_error(small_mnist):
    ranks = run_ranks(3, "--data", small_mnist, "--batch-size", 32, script=MULTI, status=1)
    assert ranks[0].stderr.startswith("--batch-size 32: not a multiple of 3 ranks. ")


def test_a_compressed_file_is_read_and_a_damaged_one_is_an_error(small_mnist, monkeypatch):
    monkeypatch.syspath_prepend(LADDER)
    import mnist_single

    path = small_mnist / "train-images-idx3-ubyte"
    content = path.read_bytes()
    images = mnist_single.read_idx(path)
    path.unlink()
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(content))
    assert torch.equal(mnist_single.read_idx(path), images) and images.shape == (130, 28, 28)
    for wrong in (content[:-1], content + b"\0", b"no images"):
        packed.write_bytes(gzip.compress(wrong))
        with pytest.raises((RuntimeError, ValueError)):
            mnist_single.read_idx(path)


def test_without_horovod_the_script_reports_which_modules_have_it(run_alone):
    """The environment of the tests has none."""
    rank = run_alone(script=LADDER / "mnist_horovod.py", status=1)
    assert rank.stderr.startswith("mnist_horovod.py: ") and rank.stdout == ""
    assert rank.stderr.endswith(". Load a module that has Horovod (`module spider horovod`)\n")

"""The ladder from the notebook to many ranks: its rungs differ in little, and lead to the same result."""

import difflib
import gc
import json
import re

import pytest
import torch
from launching import PAYLOAD, run_code, run_ranks

LINES = re.compile(
    r"""(?P<first>.*device \w+, torch \S+, data .*)
epoch 1/2  loss (?P<loss>\d\.\d{4})  test accuracy \d+\.\d\d %  images/s \d+
epoch 2/2  loss \d\.\d{4}  test accuracy (?P<accuracy>\d+\.\d\d) %  images/s \d+
test accuracy: (?P=accuracy) %
"""
)

#: The line of each rank and epoch in the script for many.
OF_A_RANK = r"^\[CPU(\d)\] Epoch (\d) \| Batchsize: (\d+) \| Steps: (\d+)\n"
LADDER = PAYLOAD / "ladder"
SINGLE, MULTI = LADDER / "mnist_single.py", LADDER / "mnist_multi.py"


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
    ("one", "other", "counts"),
    # the notebook has options in place of a command line, and finds the library by the module's variable
    [
        ("mnist.ipynb", "mnist_single.py", (18, 11)),
        ("mnist_single.py", "mnist_multi.py", (22, 32)),
        ("mnist_multi.py", "mnist_horovod.py", (27, 22)),
    ],
)
def test_neighbouring_rungs_differ_in_few_lines(one, other, counts):
    """A line that is changed in one of them alone is one more on both sides."""
    lines = differences(LADDER / one, LADDER / other)
    assert tuple(map(len, lines)) == counts, "\n".join(map(str, lines))


def test_a_notebook_as_it_is_handed_out_has_no_output():
    notebook = json.loads((LADDER / "mnist.ipynb").read_text())
    assert notebook["nbformat"] == 4
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(cell["outputs"] == [] for cell in notebook["cells"] if cell["cell_type"] == "code")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, write_mnist):
    """What the scripts printed on the same 130 images, in batches of which the last has 2: by name and world size."""
    options = (
        "--data",
        write_mnist(tmp_path_factory.mktemp("ladder") / "mnist", 130, 31),
        "--epochs",
        2,
        "--batch-size",
        32,
    )
    worlds = [("mnist_single.py", 1), ("mnist_multi.py", 1), ("mnist_multi.py", 3)]
    return {(script, size): run_ranks(size, *options, script=LADDER / script) for script, size in worlds}


def test_every_rung_prints_the_lines_of_the_others_and_ends_where_they_end(trained):
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
        assert float(outcome["loss"]) == pytest.approx(float(alone["loss"]), abs=0.0002)
        assert outcome["accuracy"] == alone["accuracy"]


def test_each_rank_of_many_prints_its_share_and_its_steps(trained):
    ranks = trained["mnist_multi.py", 3]
    found = [re.findall(OF_A_RANK, rank.stdout, flags=re.MULTILINE) for rank in ranks]
    shares = "11", "11", "10"  # of the first batch of 32
    assert found == [[(str(rank), epoch, shares[rank], "5") for epoch in "12"] for rank in range(3)]


def test_the_rungs_resume_from_each_others_checkpoints(run_alone, small_mnist, tmp_path, monkeypatch):
    """Also from one with the prefix of DistributedDataParallel; the notebook writes to outputs/."""
    line = ("--data", str(small_mnist), "--epochs", "3", "--batch-size", "256", "--modelpath", "outputs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAYLOAD", str(PAYLOAD))
    monkeypatch.setenv("MNIST_ROOT", str(small_mnist))
    through = run_alone(*line[:-1], "through", script=SINGLE).stdout
    checkpoints = tmp_path / "outputs" / "checkpoints"

    def keep_first_epochs(count):
        for path in checkpoints.glob("epoch-*.pt"):
            if int(path.name[6:10]) > count:
                path.unlink()

    namespace = {}
    exec(compile("\n".join(cells(LADDER / "mnist.ipynb")), "notebook", "exec"), namespace)  # noqa: S102
    assert sorted(path.name[:10] for path in checkpoints.iterdir()) == [
        "best.pt",
        *(f"epoch-000{n}" for n in (1, 2, 3)),
    ]
    namespace.clear()
    gc.collect()  # the kernel ends, and with it the lock
    keep_first_epochs(1)
    (path,) = checkpoints.glob("epoch-*.pt")
    state = torch.load(path, weights_only=True)
    torch.save({**state, "model": {f"module.{name}": weight for name, weight in state["model"].items()}}, path)
    ranks = run_ranks(2, *line[:-1], tmp_path / "outputs", script=MULTI)
    assert f"resuming after 1 epochs, from {tmp_path}" in ranks[0].stdout, ranks
    keep_first_epochs(2)
    last = run_alone(*line, script=SINGLE).stdout
    assert "resuming after 2 epochs" in last and "epoch 2/3" not in last
    assert last.splitlines()[-1] == through.splitlines()[-1]
    refused = run_alone(*line, "--lr", "0.5", script=SINGLE, status=1).stderr
    assert re.search(r"written with lr 0.01 \(now 0.5\)\. Use the same options, .*--restart\n$", refused)


def test_every_rank_takes_the_step_of_the_whole_batch(small_mnist, tmp_path):
    """In double precision, with SGD, which shows a gradient that is off by a factor; the shares differ in size."""
    code = """
from ladder import mnist_multi, mnist_single
from training.data import load_dataset, normalise
from torch.nn.parallel import DistributedDataParallel

data = load_dataset({data!r})
images = normalise(data.train_images, torch.device("cpu")).double()
batches = torch.arange(130).split(33)

def trained(module, wrap, *world):
    torch.manual_seed(1)
    network = module.build_model().double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    loss = module.train_epoch(wrap(network), optimizer, schedule, images, data.train_labels, batches, *world)
    return loss, module.evaluate(network, images, data.train_labels, *world), network.state_dict()

with process_group(os.environ, use_gpu=False, timeout=600) as world:
    together = trained(mnist_multi, DistributedDataParallel, world)
    if world.rank == 0:
        torch.save([trained(mnist_single, lambda network: network), together], {result!r})
"""
    run_code(2, code.format(data=str(small_mnist), result=str(tmp_path / "result")))
    alone, together = torch.load(tmp_path / "result", weights_only=True)
    assert together[0] == pytest.approx(alone[0], rel=1e-6)
    assert together[1] == alone[1] > 5
    for name, weight in alone[2].items():
        torch.testing.assert_close(together[2][name], weight, rtol=1e-9, atol=1e-9)


def test_a_fault_is_one_line_and_ends_all_ranks(run_alone, tmp_path):
    alone = run_alone("--data", tmp_path, script=SINGLE, status=1)
    assert re.fullmatch(rf"mnist_single.py: {tmp_path} holds no train-images-[^\n]*\n", alone.stderr)
    ranks = run_ranks(2, "--data", tmp_path, script=MULTI, status=1)
    assert ranks[0].stderr == alone.stderr.replace("mnist_single.py", "rank 0")
    assert ranks[1].stderr == alone.stdout == ranks[0].stdout == ""


def test_without_horovod_the_script_reports_which_modules_have_it(run_alone):
    """The environment of the tests has none."""
    rank = run_alone(script=LADDER / "mnist_horovod.py", status=1)
    assert rank.stderr.startswith("mnist_horovod.py: ") and rank.stdout == ""
    assert rank.stderr.endswith(". Load a module that has Horovod (`module spider horovod`)\n")


def test_the_small_network_prints_its_loss_ten_times_and_its_accuracy(run_alone):
    rank = run_alone(script=LADDER / "nn.py")
    assert rank.stderr == ""
    *epochs, last = rank.stdout.splitlines()
    found = [re.fullmatch(r"Epoch \[(\d+)/10000\], Loss: (\d\.\d{4})", line) for line in epochs]
    assert [int(match[1]) for match in found] == list(range(1000, 10001, 1000))
    losses = [float(match[2]) for match in found]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.2
    assert float(re.fullmatch(r"Accuracy: (\d+\.\d\d)%", last)[1]) > 97

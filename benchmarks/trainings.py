"""Rows on training: the time to 99 %, two ranks against two lone runs, and checkpoints."""

import re
from itertools import count

from benchmarks.session import PROGRAMS, TREE
from benchmarks.steps import ONE_NODE
from testbed.layout import TestbedError
from testbed.recipes import DATASET, VENV

TRAINING = TREE / "payload" / "mnist_ddp.py"
#: Images in an epoch of MNIST.
TRAINING_IMAGES = 60000
#: Epochs after which mnist_ddp.py recognises 99 % of the test images, and the fewest after which the textbook's loop
#: does: it took two or three in seven trainings.
EPOCHS_TO_99 = 2
#: Batches of the textbook's loop that are timed: a fifth of an epoch.
TEXTBOOK_BATCHES = 188


def time_to_99(session):
    """Seconds of training until 99 %: of mnist_ddp.py, and at least of the textbook's loop, by a part of an epoch."""
    env = session.load(DATASET, VENV)
    textbook = ["python", PROGRAMS / "textbook_mnist.py", env["MNIST_ROOT"]]
    seeds = count()
    for number in count():
        ours = seconds_to_99(session, env, seeds)
        output = session.run([*textbook, number, TEXTBOOK_BATCHES], env)
        yield [(ours, EPOCHS_TO_99 * number_after("seconds per epoch: ", output))]


def seconds_to_99(session, env, seeds):
    """Seconds of mnist_ddp.py. A training that ends below 99 % costs its time and the time of the next one."""
    seconds = 0.0
    for _ in range(3):
        output = session.run(["python", TRAINING, "--epochs", EPOCHS_TO_99, "--seed", next(seeds)], env)
        seconds += number_after("training time: ", output)
        if number_after("test accuracy: ", output) >= 99:
            return seconds
    raise TestbedError("mnist_ddp.py ended below 99 % three times in a row.")


def two_ranks(session):
    """Seconds for an epoch's images: of two ranks on two cores, and of two lone runs on the same cores."""
    env = session.load(DATASET, VENV)
    env["OMP_NUM_THREADS"] = "1"
    command = ["-u", TRAINING, "--epochs", "1", "--batch-per-rank", "256"]

    def seconds_per_epoch(launch, runs):
        output = session.run([*ONE_NODE, "-n2", launch, *command], env)
        rates = [float(rate) for rate in re.findall(r"images/s (\d+)", output)]
        if len(rates) != runs:
            raise TestbedError(f"`{launch}` reported the speed of {len(rates)} runs, not of {runs}.")
        return TRAINING_IMAGES / sum(rates)

    while True:
        together = seconds_per_epoch("conda-python-distributed", 1)
        yield [(together, seconds_per_epoch("conda-python-simple", 2))]


def save(session):
    """The seconds that steps lose to a checkpoint, asynchronous and not, as `checkpoint_cost.py` prints them."""
    env = session.load(DATASET, VENV)
    while True:
        output = session.run(["python", PROGRAMS / "checkpoint_cost.py", session.scratch / "checkpoints"], env)
        yield [(number_after("A: ", output), number_after("B: ", output))]


def number_after(label, output):
    """The number behind `label` at the start of one of the lines of `output`. Raises TestbedError if there is none."""
    match = re.search(rf"^{label}([0-9.]+)", output, re.MULTILINE)
    if match is None:
        raise TestbedError(f"A training printed no line with '{label.strip()}'.")
    return float(match[1])

"""Ranks of mnist_ddp.py that can be signalled at a step, killed at any moment, and read while they run.

Modules that use it have the fixture `zygote`, which forks them.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

import torch
from launching import PAYLOAD, launch

#: What forks a process; the fixture `zygote` sets it.
start = None

MAIN = """
import mnist_ddp, os
from training.progress import Progress

def update(progress, step, mean_loss, update=Progress.update):
    if (int(os.environ["RANK"]), progress.name, step) == {strike!r}:
        os.kill(os.getpid(), {number})
    update(progress, step, mean_loss)

Progress.update = update
mnist_ddp.main(mnist_ddp.parse_arguments({arguments!r}))
"""


class Forks:
    """The ranks of one world, running; `strike`: the rank that receives `number`, the epoch's name and the step."""

    def __init__(self, size, *arguments, strike=None, number=signal.SIGUSR1):
        code = MAIN.format(strike=strike, number=int(number), arguments=list(map(str, arguments)))
        self.ranks = launch(size, ("-c", code), environments=[{"PYTHONPATH": str(PAYLOAD)}] * size, start=start)
        self.pids = [process.pid for process in self.ranks.processes]

    def is_alive(self):
        """Whether rank 0 runs."""
        return Path(f"/proc/{self.pids[0]}").exists()

    def wait_until_said(self, text):
        """Return when rank 0 has written `text`, or has ended."""
        output = Path(f"/proc/self/fd/{self.ranks.processes[0].outputs[0].fileno()}")
        while text not in output.read_text() and self.is_alive():
            time.sleep(0.005)

    def kill(self):
        """End all ranks at once, as a power cut does."""
        for process in self.ranks.processes:
            process.kill()

    def signal(self, rank, number=signal.SIGTERM):
        """Send a rank a signal, if it has not ended meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], number)

    def wait(self):
        """What is left of the ranks."""
        return self.ranks.wait()


def train(size, *arguments):
    """Run `mnist_ddp.py` on each rank of a world and return what is left of them."""
    return Forks(size, *arguments).wait()


def weights(directory):
    """The weights that a training wrote to a directory."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def equal(one, other):
    """Whether two sets of weights are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

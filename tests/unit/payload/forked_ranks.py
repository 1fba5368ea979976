"""Ranks of mnist_ddp.py as forks of one process that has imported torch: many short runs in little time."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from ports import port_of, reserve_port

CONTEXT = multiprocessing.get_context("forkserver")
# torch._dynamo: the first optimizer imports it. matplotlib: it draws the curves. What is missing is left out.
CONTEXT.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.nn.functional",
        "torch.nn.parallel",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ]
)


class Rank(NamedTuple):
    """What is left of a rank that has ended."""

    status: int
    stdout: str
    stderr: str


def run_main(arguments, environment, output, strike):
    """Be a rank: what a process that Python starts anew does, without the import of torch.

    `strike` names an epoch, a step at which the rank receives a signal, and the signal.
    """
    for stream, name in ((1, "stdout"), (2, "stderr")):
        with (output / name).open("w") as file:
            os.dup2(file.fileno(), stream)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.update(environment)

    import mnist_ddp
    from training.progress import Progress

    def update(progress, step, mean_loss, update=Progress.update):
        if strike and (progress.name, step) == strike[:2]:
            os.kill(os.getpid(), strike[2])
        update(progress, step, mean_loss)

    Progress.update = update
    torch.set_num_threads(1)
    mnist_ddp.main(mnist_ddp.parse_arguments(list(map(str, arguments))))


class Forks:
    """The ranks of one world, running; `strike`: the rank that receives `number`, and when."""

    def __init__(self, size, *arguments, strike=(None,), number=signal.SIGUSR1):
        self.directory = tempfile.TemporaryDirectory()
        self.reserved = reserve_port()
        world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of(self.reserved))}
        self.outputs = [Path(self.directory.name) / str(rank) for rank in range(size)]
        self.processes = []
        for rank, output in enumerate(self.outputs):
            output.mkdir()
            environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            own_strike = (*strike[1:], number) if rank == strike[0] else None
            process = CONTEXT.Process(target=run_main, args=(arguments, environment, output, own_strike), daemon=True)
            process.start()
            self.processes.append(process)

    def output(self, rank=0):
        """What a rank has written on its standard output so far."""
        file = self.outputs[rank] / "stdout"
        return file.read_text() if file.exists() else ""

    def wait_until_said(self, text):
        """Return when rank 0 has written `text`, or has ended."""
        while text not in self.output() and self.processes[0].is_alive():
            time.sleep(0.005)

    def kill(self):
        """End all ranks at once, as a power cut does."""
        for process in self.processes:
            process.kill()

    def signal(self, rank, number=signal.SIGTERM):
        """Send a rank a signal, if it has not ended meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid, number)

    def wait(self):
        """What is left of the ranks."""
        for process in self.processes:
            process.join(600)
        self.kill()  # what hangs
        for process in self.processes:
            process.join()
        self.reserved.close()
        ranks = [
            Rank(process.exitcode, (output / "stdout").read_text(), (output / "stderr").read_text())
            for process, output in zip(self.processes, self.outputs)
        ]
        self.directory.cleanup()
        return ranks


def train(size, *arguments):
    """Run `mnist_ddp.py` on each rank of a world and return what is left of them."""
    return Forks(size, *arguments).wait()


def weights(directory):
    """The weights that a training wrote to a directory."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def equal(one, other):
    """Whether two sets of weights are the same, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

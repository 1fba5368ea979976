"""Starts ranks as a launcher would; some can be signalled at a step, killed at any moment, and read while they run."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from forked import Forked

REPOSITORY = Path(__file__).resolve().parents[3]
PAYLOAD = REPOSITORY / "payload"

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LEFT_OUT = (*TORCH_VARIABLES, "MNIST_ROOT", "PYTORCH_LAUNCH_ID")


def reserve_port():
    """Return a socket with a port of loopback; until it is closed, only a process that names the port can bind to it.

    A server can listen on the port meanwhile if it sets SO_REUSEADDR, as torch's store does: this socket does not
    listen, see socket(7).
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


class Rank(NamedTuple):
    """What is left of a rank that has ended."""

    status: int
    stdout: str
    stderr: str


def start_python(command, environment, cwd=None):
    """Start a Python of its own, which imports torch anew."""
    command = [sys.executable, *map(str, command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, cwd=cwd, **pipes)


class Ranks:
    """The processes of one world, one of one thread for each environment, not yet waited for."""

    def __init__(self, command, environments, cwd=None, start=Forked, reserved=None):
        self.reserved = reserved  # the port of rank 0
        base = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        self.processes = [
            start(command, {**base, "OMP_NUM_THREADS": "1", **environment}, cwd) for environment in environments
        ]

    def is_alive(self):
        """Whether rank 0 runs."""
        return self.processes[0].returncode is None

    def wait_until(self, condition):
        """Return when a condition holds, when rank 0 has ended, or after ten minutes."""
        end = time.monotonic() + 600
        while not condition() and self.is_alive() and time.monotonic() < end:
            time.sleep(0.001)

    def wait_until_said(self, text, stream=1):
        """Return when rank 0 has written `text` to standard output or error, or has ended."""
        output = Path(f"/proc/self/fd/{self.processes[0].outputs[stream - 1].fileno()}")
        self.wait_until(lambda: text in output.read_text())

    def kill(self):
        """End all ranks at once, as a power cut does."""
        for process in self.processes:
            process.kill()

    def signal(self, rank, number=signal.SIGTERM):
        """Send a rank a signal, if it has not ended meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.processes[rank].pid, number)

    def wait(self, status=None):
        """What is left of the ranks, which must all end with this status, if there is one."""
        try:
            outputs = [process.communicate(timeout=600) for process in self.processes]
        finally:
            self.kill()
            if self.reserved:
                self.reserved.close()
        ranks = [Rank(process.returncode, *output) for process, output in zip(self.processes, outputs)]
        assert status is None or {rank.status for rank in ranks} == {status}, ranks
        return ranks


def launch(size, *command, environments=None, **variables):
    """Start a world on this host as a launcher does, with variables for all ranks and for each."""
    reserved = reserve_port()
    port = str(reserved.getsockname()[1])
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **variables}
    own = environments or [{}] * size
    each = [{**world, "RANK": str(rank), "LOCAL_RANK": str(rank), **own[rank]} for rank in range(size)]
    return Ranks(command, each, reserved=reserved)


def run_ranks(size, *arguments, script="mnist_ddp.py", status=0, **settings):
    """Run a script on each rank of a world, which must end with this status; return what is left of them."""
    return launch(size, PAYLOAD / script, *arguments, **settings).wait(status)


def run_model(size, *arguments, status=0):
    return run_ranks(size, *arguments, script="lm_fsdp.py", status=status)


#: What most pieces of Python import.
IMPORTS = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from training.distributed import process_group
from training.stopping import STOPPED, StopSignals
"""


def run_code(size, code, status=0):
    """Run a piece of Python, which can import the payload and modules of these tests, on each rank of a world."""
    paths = f"{PAYLOAD}:{REPOSITORY / 'tests'}"
    return launch(size, "-c", IMPORTS + code, PYTHONPATH=paths, FREE_AT_END="1").wait(status)


#: A rank receives a signal at a step.
STRUCK = """
import mnist_ddp, os
from training.progress import Progress

def update(progress, step, mean_loss, update=Progress.update):
    if (int(os.environ["RANK"]), progress.name, step) == {strike!r}:
        os.kill(os.getpid(), {number})
    update(progress, step, mean_loss)

Progress.update = update
mnist_ddp.run_training(mnist_ddp.train, mnist_ddp.parse_arguments({arguments!r}))
"""


def run_struck(size, *arguments, strike, number=signal.SIGUSR1, status=75):
    """Run `mnist_ddp.py`; `strike`: the rank that receives a signal, the name of the epoch, and the step."""
    code = STRUCK.format(strike=strike, number=int(number), arguments=list(map(str, arguments)))
    return launch(size, "-c", code, PYTHONPATH=str(PAYLOAD)).wait(status)

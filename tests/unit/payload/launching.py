"""Starts ranks as a launcher would."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from ports import port_of, reserve_port

REPOSITORY = Path(__file__).resolve().parents[3]
PAYLOAD = REPOSITORY / "payload"

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LEFT_OUT = (*TORCH_VARIABLES, "MNIST_ROOT", "PYTORCH_LAUNCH_ID")


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

    def __init__(self, command, environments, cwd=None, start=start_python, reserved=None):
        self.reserved = reserved  # the port of rank 0
        base = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        self.processes = [
            start(command, {**base, "OMP_NUM_THREADS": "1", **environment}, cwd) for environment in environments
        ]

    def wait(self):
        try:
            outputs = [process.communicate(timeout=600) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
            if self.reserved:
                self.reserved.close()
        return [Rank(process.returncode, *output) for process, output in zip(self.processes, outputs)]


def launch(size, command, environments=None, start=start_python):
    """Start a world on this host as a launcher does."""
    reserved = reserve_port()
    world = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port_of(reserved))}
    return Ranks(
        command,
        [
            {**world, "RANK": str(rank), "LOCAL_RANK": str(rank), **(environments[rank] if environments else {})}
            for rank in range(size)
        ],
        start=start,
        reserved=reserved,
    )

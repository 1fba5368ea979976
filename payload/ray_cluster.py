#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run a script on a Ray cluster of the nodes of this launch: each rank runs a Ray node, and rank 0 the script.

    srun -N2 -n2 conda-python-distributed -u ray_cluster.py [--OPTION=VALUE ...] SCRIPT [OPTION ...]

Options before the script are those of `ray start`, for all nodes. Ray's head listens at MASTER_ADDR and MASTER_PORT.
When the script ends, the Ray nodes end, and its exit status is that of rank 0.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import takewhile

from training import TrainingError

#: Seconds for the head to listen, for a Ray node to end, and between two looks at the head.
START_SECONDS = 300
END_SECONDS = 20
INTERVAL = 1
#: The variables of this rank. Ray Train numbers its workers itself, and Ray sets OMP_NUM_THREADS for each worker.
OWN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)


def ray_environment(environment: Mapping[str, str], directory: str, address: str) -> dict[str, str]:
    """Return the environment of Ray's processes, whose files are in ``directory``, with the head at ``address``."""
    changed = {name: value for name, value in environment.items() if name not in OWN}
    # otherwise in /tmp/ray, which belongs to the first user of the node: https://github.com/ray-project/ray/issues/4593
    changed.update(RAY_TMPDIR=directory, RAY_ADDRESS=address)
    # Ray 2.60 and newer wait 30 s for actors after SIGTERM: https://github.com/ray-project/ray/pull/64454
    changed.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
    # Slurm's variable for AMD GPUs, with which Ray 2.45 and newer exit: https://github.com/ray-project/ray/pull/51104
    visible = changed.pop("ROCR_VISIBLE_DEVICES", None)
    if visible is not None:
        changed.setdefault("HIP_VISIBLE_DEVICES", visible)
    return changed


def wait_until(is_over: Callable[[], bool | None], node: subprocess.Popen | None, seconds: float = math.inf) -> None:
    """Return when a condition holds; TrainingError after ``seconds``, or if this rank's Ray ``node`` ends."""
    deadline = time.monotonic() + seconds
    while not is_over():
        if node and node.poll() is not None:
            raise TrainingError(f"the Ray node of this rank ended with status {node.returncode}")
        if time.monotonic() > deadline:
            raise TrainingError(f"no Ray head at MASTER_ADDR and MASTER_PORT after {seconds:g} s")
        time.sleep(INTERVAL)


def listens(address: tuple[str, int]) -> bool | None:
    """Return whether Ray's head listens; None if its node does not answer in time."""
    try:
        socket.create_connection(address, timeout=INTERVAL).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


def wait_for_nodes(size: int, environment: dict[str, str]) -> None:
    """Return when all Ray nodes have joined; TrainingError if they have not in time."""
    code = (
        "import sys, ray\nfrom time import sleep\nray.init(log_to_driver=False, logging_level='ERROR')\n"
        "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[1]): sleep(0.2)\n"
    )
    try:
        subprocess.run([sys.executable, "-c", code, str(size)], env=environment, timeout=START_SECONDS, check=True)
    except subprocess.SubprocessError:
        raise TrainingError(f"{size} Ray nodes have not joined. Read the output above") from None


def run_script(command: list[str], environment: dict[str, str]) -> int:
    """Run the script, pass signals on to it, and return its exit status as a shell reports it."""
    script = subprocess.Popen([sys.executable, "-u", *command], env=environment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda received, _frame: script.send_signal(received))
    status = script.wait()
    return status if status >= 0 else 128 - status


def ray_command(address: tuple[str, int], is_head: bool, directory: str) -> list[str]:
    """Return the command that starts the Ray node of this rank."""
    host, port = address
    role = [f"--address={host}:{port}"]
    if is_head:
        role = ["--head", f"--node-ip-address={host}", f"--port={port}"]
    # Ray would count all CPUs of the machine, report its use to its authors, and refuse a MASTER_PORT from 10002 to
    # 19999, its ports for workers; 0 is any free port
    common = [
        "--min-worker-port=0",
        "--max-worker-port=0",
        f"--num-cpus={len(os.sched_getaffinity(0))}",
        f"--temp-dir={directory}",
        "--disable-usage-stats",
        "--block",
    ]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *common]


def main(arguments: list[str]) -> int:
    """Run the Ray node of this rank and, on rank 0, the script; return the exit status."""
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    script = arguments[len(options) :]
    if not script:
        print("usage: ray_cluster.py [--OPTION=VALUE of ray start ...] SCRIPT [OPTION ...]", file=sys.stderr)
        return 2
    if os.environ.get("LOCAL_WORLD_SIZE") != "1":
        raise TrainingError("Ray needs one rank on each node. Start it with conda-python-distributed: srun -N2 -n2")
    is_head = os.environ["RANK"] == "0"
    address = (socket.gethostbyname(os.environ["MASTER_ADDR"]), int(os.environ["MASTER_PORT"]))
    # in /tmp, because the names of Ray's sockets there have at most 107 bytes (unix(7)), 70 of them its own
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # noqa: S108 - of this user alone, with a random name
    environment = ray_environment(os.environ, directory, f"{address[0]}:{address[1]}")
    node = None
    try:
        if not is_head:
            wait_until(lambda: listens(address), None, START_SECONDS)
        command = [*ray_command(address, is_head, directory), *options]
        node = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        if not is_head:
            wait_until(lambda: listens(address) is False, node)
            return 0
        wait_until(lambda: listens(address), node, START_SECONDS)
        wait_for_nodes(int(os.environ["WORLD_SIZE"]), environment)
        return run_script(script, environment)
    finally:
        if node:
            node.terminate()
            try:
                node.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        sys.exit(main(sys.argv[1:]))
    except (TrainingError, OSError) as fault:  # OSError: /tmp is full, for example
        sys.exit(f"ray_cluster.py: {fault}")

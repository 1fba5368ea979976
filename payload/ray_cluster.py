#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Run a script on a Ray cluster of the nodes of this launch: each rank runs a Ray node, and rank 0 the script.

    srun -N2 -n2 conda-python-distributed -u ray_cluster.py [--OPTION=VALUE ...] SCRIPT [OPTION ...]

Options before the script are those of `ray start`, for all nodes. Ray's head listens at MASTER_ADDR and MASTER_PORT.
When the script ends, the Ray nodes end, and its exit status is that of rank 0.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from training import TrainingError

#: Seconds for all Ray nodes to join, and for one to end.
START_SECONDS, END_SECONDS = 300, 20
#: Seconds between two looks at the head.
INTERVAL = 2
#: The variables of this rank. Ray Train numbers its workers itself, and Ray sets OMP_NUM_THREADS for each worker.
OWN: tuple[str, ...] = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
OWN += ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
USAGE = "usage: ray_cluster.py [--OPTION=VALUE of ray start ...] SCRIPT [OPTION ...]"


class Launch:
    """This rank, and where the head listens; raises TrainingError unless each node has one rank."""

    def __init__(self, environment: Mapping[str, str]):
        try:
            self.rank, self.size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            self.host, self.port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
            per_node = int(environment["LOCAL_WORLD_SIZE"])
            self.is_head = self.rank == 0
        except (KeyError, ValueError) as error:
            raise TrainingError(f"no rank of a launch ({error}). Start it with conda-python-distributed") from None
        if per_node != 1:
            raise TrainingError(f"{per_node} ranks on this node, but Ray needs one: srun -N2 -n2 on two nodes")

    def has_head(self) -> bool | None:
        """Return whether the head listens; None if its node does not answer in time."""
        try:
            socket.create_connection((self.host, self.port), timeout=INTERVAL).close()
        except ConnectionRefusedError:
            return False
        except OSError:
            return None
        return True


def split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of ``ray start``, all in the form --name=value, and the script with its options."""
    first = next((index for index, word in enumerate(arguments) if not word.startswith("-")), None)
    if first is None:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    return arguments[:first], arguments[first:]


def ray_environment(environment: Mapping[str, str], directory: str) -> dict[str, str]:
    """Return the environment of Ray's processes, whose files are in ``directory``."""
    changed = {name: value for name, value in environment.items() if name not in OWN}
    # otherwise in /tmp/ray, which belongs to the first user of the node: https://github.com/ray-project/ray/issues/4593
    changed["RAY_TMPDIR"] = directory
    # Ray 2.60 and newer wait 30 s for actors after SIGTERM: https://github.com/ray-project/ray/pull/64454
    changed.setdefault("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
    # Slurm's variable for AMD GPUs, with which Ray 2.45 and newer exit: https://github.com/ray-project/ray/pull/51104
    visible = changed.pop("ROCR_VISIBLE_DEVICES", None)
    if visible is not None:
        changed.setdefault("HIP_VISIBLE_DEVICES", visible)
    return changed


def endpoint(host: str, port: int) -> str:
    """Return host and port in one word."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def start_command(launch: Launch, address: str, cpus: int, directory: str, options: list[str]) -> list[str]:
    """Return the command that runs the Ray node of this rank, with its files in ``directory``, until SIGTERM."""
    role = [f"--address={endpoint(address, launch.port)}"]
    if launch.is_head:
        role = ["--head", f"--node-ip-address={address}", f"--port={launch.port}"]
    # Ray would count all CPUs of the machine, and report its use to its authors
    common = [f"--num-cpus={cpus}", f"--temp-dir={directory}", "--disable-usage-stats", "--block"]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *role, *common, *options]


@contextmanager
def ray_node(launch: Launch, options: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen]:
    """Run the Ray node of this rank during a ``with`` block."""
    directory = environment["RAY_TMPDIR"]
    log = Path(directory) / "start.log"
    address = str(socket.getaddrinfo(launch.host, launch.port, type=socket.SOCK_STREAM)[0][4][0])
    command = start_command(launch, address, len(os.sched_getaffinity(0)), directory, options)
    with log.open("wb") as output:
        node = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield node
    finally:
        if node.poll() is None:
            node.terminate()
            try:
                node.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()
        elif node.returncode:
            sys.stderr.write("".join(f"ray start: {line}\n" for line in log.read_text().splitlines()[-20:]))


def wait_for_head(launch: Launch, node: subprocess.Popen | None = None) -> None:
    """Return when the head listens; raise TrainingError if it does not in time, or if ``node`` ends."""
    deadline = time.monotonic() + START_SECONDS
    while not launch.has_head():
        if node is not None and node.poll() is not None:
            raise TrainingError(f"ray start ended with status {node.returncode}")
        if time.monotonic() > deadline:
            raise TrainingError(f"no Ray head at {launch.host}:{launch.port} after {START_SECONDS} s")
        time.sleep(0.2)


def wait_for_nodes(launch: Launch, environment: dict[str, str]) -> None:
    """Return when all Ray nodes have joined; raise TrainingError if they have not in time."""
    code = (
        "import sys, time, ray\nray.init(log_to_driver=False, logging_level='ERROR')\n"
        "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[1]): time.sleep(0.2)\n"
    )
    command = [sys.executable, "-c", code, str(launch.size)]
    try:
        subprocess.run(command, env=environment, timeout=START_SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise TrainingError(f"fewer than {launch.size} Ray nodes joined in {START_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise TrainingError(f"the script cannot connect to Ray (status {error.returncode})") from None


def run_script(command: list[str], environment: dict[str, str]) -> int:
    """Run the script, pass signals on to it, and return its exit status as a shell reports it."""
    script = subprocess.Popen([sys.executable, "-u", *command], env=environment)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda received, _frame: script.send_signal(received))
    status = script.wait()
    return status if status >= 0 else 128 - status


def wait_for_end(launch: Launch, node: subprocess.Popen) -> None:
    """Return when the head has ended; raise TrainingError if the Ray node of this rank ends before."""
    while launch.has_head() is not False:
        if node.poll() is not None:
            raise TrainingError(f"the Ray node of rank {launch.rank} ended with status {node.returncode}")
        time.sleep(INTERVAL)


def main(arguments: list[str]) -> int:
    """Run the Ray node of this rank and, on rank 0, the script; return the exit status."""
    options, script = split(arguments)
    launch = Launch(os.environ)
    if launch.is_head and not Path(script[0]).is_file():
        raise TrainingError(f"{script[0]}: no such file in {Path.cwd()}. Check the path")
    # in /tmp, because the names of Ray's sockets there have at most 107 bytes (unix(7)), 70 of them its own
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # noqa: S108 - of this user alone, with a random name
    environment = ray_environment(os.environ, directory)
    try:
        if not launch.is_head:
            wait_for_head(launch)
        with ray_node(launch, options, environment) as node:
            if not launch.is_head:
                wait_for_end(launch, node)
                return 0
            wait_for_head(launch, node)
            environment["RAY_ADDRESS"] = endpoint(launch.host, launch.port)
            wait_for_nodes(launch, environment)
            return run_script(script, environment)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        sys.exit(main(sys.argv[1:]))
    except TrainingError as fault:
        sys.exit(f"ray_cluster.py: {fault}")

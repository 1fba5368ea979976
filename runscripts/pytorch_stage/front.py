"""Finds or starts the staging of a job, for the command and for ranks."""

import json
import os
import random
import signal
import time

from pytorch_packed import COPY_SECONDS, DAMAGED, ask, service

from pytorch_stage import DamagedError, StageError
from pytorch_stage.announcing import bind
from pytorch_stage.director import BusyError, Director


def find(item, env, seconds=0.0):
    """The path that this node's keeper serves, None without a keeper after `seconds`, "" if its staging failed."""
    name = service(env, item.path)
    deadline = time.monotonic() + seconds
    while True:
        path = ask(name, COPY_SECONDS)
        if path is not None or time.monotonic() >= deadline:
            return path
        time.sleep(0.05)


def obtain(item, env, launcher=(), say=lambda _: None):
    """The path of the staged copy, staged now if need be; `say` prints a line. Raises StageError."""
    deadline = time.monotonic() + COPY_SECONDS
    while time.monotonic() < deadline:
        # on a login node, the job has a process, and no copy
        path = find(item, env) or ask(service(env, item.path, "front"), COPY_SECONDS, is_here=False)
        if path and path != DAMAGED:
            return path
        lock = bind(service(env, item.path, "front"))
        if lock is None:  # another process of this node starts it
            time.sleep(0.1)
            continue
        with lock:
            result = direct(item, env, launcher, lock)
        if "path" in result:
            if "nodes" in result:
                say(sentence(item, result))
            return result["path"]
        if not result.get("busy"):
            error = DamagedError if result.get("damaged") else StageError
            raise error(result.get("problem", "the process that stages was killed"))
        time.sleep(random.uniform(0.1, 1))  # noqa: S311  (so that two nodes do not try again at the same moment)
    raise StageError(f"no copy within {COPY_SECONDS} s")


def sentence(item, result):
    """What was staged, and how long it took."""
    nodes = f"{result['nodes']} node{'s' if result['nodes'] != 1 else ''}"
    return (f"{os.path.basename(item.path)} ({item.size / 1e9:.2f} GB) staged on {nodes} in {result['total']:.1f} s "
            f"(copy {result['copying']:.1f} s, checksum {result['checking']:.1f} s): {result['path']}")  # fmt: skip


def direct(item, env, launcher, lock):
    """Run a Director in a process of its own, which stays; return its result."""
    told, tells = os.pipe()
    owner = os.getsid(0)
    middle = os.fork()
    if middle == 0:
        os.close(told)
        if os.fork():
            os._exit(0)  # no child of the rank that starts it
        os._exit(run_director(Director(item, env, launcher), tells, lock, owner))
    os.close(tells)
    os.waitpid(middle, 0)
    with open(told) as stream:
        first = stream.readline()
        try:
            text = stream.readline()
        except KeyboardInterrupt:
            os.kill(int(first), signal.SIGTERM)
            raise
    return json.loads(text) if text.endswith("\n") else {}


def run_director(director, tells, lock, owner):
    """Stage, tell the result, and stay until the job ends; return the exit status."""
    os.write(tells, f"{os.getpid()}\n".encode())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(end(director)))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # a pipe of the caller, for example, whose reader waits for its end
    low, high = sorted((tells, lock.fileno()))
    for first, last in ((3, low), (low + 1, high), (high + 1, 65536)):
        os.closerange(first, last)
    os.chdir("/")
    try:
        result = director.stage()
    except (StageError, OSError) as error:
        director.release()
        lock.close()
        tell(tells, {"problem": str(error), "busy": isinstance(error, BusyError),
                     "damaged": isinstance(error, DamagedError)})  # fmt: skip
        director.wait()
        return 1
    tell(tells, result)
    # Slurm ends the keepers with the job; elsewhere they end with the session of the job script
    in_slurm = bool(director.env.get("SLURM_JOB_ID"))
    director.watch(result["path"], lock, lambda: in_slurm or os.path.exists(f"/proc/{owner}"))
    return 0


def end(director):
    """End the keepers after a signal; return the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    director.release()
    director.wait()
    return 1


def tell(tells, result):
    """Write the result for the process that waits for it."""
    os.write(tells, json.dumps(result).encode() + b"\n")
    os.close(tells)

# SPDX-License-Identifier: BSD-3-Clause
"""Reads the stacks of a process with py-spy, which it runs on the host.

A process of the job's user may trace a container from outside, as its user owns the container's user namespace
(user_namespaces(7)), but not from within another container. py-spy's program is linked statically, so one that only
an image has runs on the host as well.
"""

import json
import os
import subprocess

from pytorch_launch import read
from pytorch_launch.facts import state_and_parent

INSTALL = "Install it with the module's pip (`pip install py-spy`, with a venv module `pip install --user py-spy`)"
#: The kernel's setting, and for each value who may trace, and what to do.
SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
REFUSALS = {
    "1": "the kernel allows tracing only to parents (kernel.yama.ptrace_scope=1). Start the rank with "
    "conda-python-distributed, and without PYTORCH_LAUNCH_TRACEABLE=0",
    "2": "the kernel allows only root to trace (kernel.yama.ptrace_scope=2). Use a container that starts without "
    "setuid, or ask the site for another value",
    "3": "the kernel allows no tracing (kernel.yama.ptrace_scope=3). Ask the site for another value",
}
OTHERWISE = "no permission to trace it. Run pytorch-stacks as the job's user, and on the host instead of in an image"


class SpyError(Exception):
    """The stacks of a process cannot be read; the message has the reason and the remedy."""


def read_stacks(pid, env, seconds):
    """The threads of process `pid`, which started with variables `env`: the main thread first.

    A thread is {"name", "frames"}, a frame [function, file, line]; the innermost frame is first. Raises SpyError.
    """
    # the directories of PATH as the rank sees them, then those of this process
    places = [f"/proc/{pid}/root{place}" for place in env.get("PATH", "").split(":") if place.startswith("/")]
    places += [place for place in os.environ.get("PATH", "").split(":") if place]
    errors = []
    for program in (f"{place}/py-spy" for place in places):
        try:
            if os.access(program, os.X_OK):
                return _threads(_dump(program, pid, seconds), pid)
        except OSError as error:
            errors.append(f"{program}: {error.strerror}")
    if errors:
        raise SpyError(f"py-spy cannot be started: {'; '.join(errors)}. Make it executable")
    raise SpyError(f"py-spy not found on the PATH of the rank or of its node. {INSTALL}")


def _dump(program, pid, seconds):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [program, "dump", "--json", "--pid", str(pid)]
    try:
        done = subprocess.run(command, timeout=seconds, check=False, **pipes)
    except subprocess.TimeoutExpired:
        raise SpyError(f"no stack within {seconds} s: {_state(pid)}") from None
    if done.returncode != 0:
        raise SpyError(_reason(pid, done.stderr.decode(errors="replace")))
    try:
        return json.loads(done.stdout.decode(errors="replace"))
    except ValueError:
        raise SpyError("py-spy printed no JSON. Use version 0.4 or newer") from None


def _threads(threads, pid):
    ordered = sorted(threads, key=lambda thread: thread.get("os_thread_id") != pid)
    names = [thread.get("thread_name") or f"thread {thread.get('os_thread_id')}" for thread in ordered]
    frames = [[[frame["name"], frame["filename"], frame["line"]] for frame in one["frames"]] for one in ordered]
    return [{"name": name, "frames": found} for name, found in zip(names, frames)]


def _state(pid):
    """Why a process does not answer: where it waits in the kernel, if it cannot be interrupted there."""
    if state_and_parent(pid)[0] != "D":
        return "try again with a larger --timeout"
    wait = read(f"/proc/{pid}/wchan")
    place = f" ({wait})" if wait not in (None, "", "0") else ""
    return f"it waits in the kernel for a device or a file system{place}. Ask the site to check the node"


def _reason(pid, errors):
    if read(f"/proc/{pid}/stat") is None:
        return "the process has ended"
    if "ermission" not in errors and "not permitted" not in errors:
        lines = errors.strip().splitlines() or ["py-spy failed without a message"]
        return "py-spy: " + " ".join(line.strip() for line in lines[:2])
    return REFUSALS.get(read(SCOPE), OTHERWISE)

# SPDX-License-Identifier: BSD-3-Clause
"""Runs checks in separate processes with a deadline, as a file system or a command may hang."""

import json
import os
import select
import signal
import time

from pytorch_doctor import Finding, fail

SLOW = "something hangs, such as a file system: try again with a larger --timeout, then ask the site"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
BROKEN = "this is a bug of pytorch-doctor: please report this line"


def run_all(groups, here, seconds):
    """The findings of all groups of checks, in their order.

    A group is a list of (name, function of `here` that returns a Finding), which one process runs one after the other.
    `seconds` is the deadline of all groups.
    """
    running, findings = [], []
    # a signal between the start of a process and its entry in `running` would leave that process behind
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        try:
            for group in groups:
                running.append(_start(group, here, mask))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        written, ended = _read([pipe for _, pipe in running], time.monotonic() + seconds)
    finally:
        for process, _ in running:
            _end(process)
    for group, (_, pipe) in zip(groups, running):
        answers = [Finding(*json.loads(line)) for line in written[pipe].decode().split("\n")[:-1]]
        none = ("ended without an answer", BROKEN) if pipe in ended else (f"no answer within {seconds} s", SLOW)
        findings += answers + [fail(name, *none) for name, _ in group[len(answers) :]]
    return findings


def _start(group, here, mask):
    """Start a group with this signal mask; return its process and the pipe that it writes its findings to."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.setsid()  # so that commands of the checks can be ended with it
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, check in group:
            os.write(writing, (json.dumps(_ask(name, check, here)) + "\n").encode())
    finally:
        os._exit(0)  # the rest of the program is for the parent only


def _ask(name, check, here):
    """The Finding of a check; an exception is a failure of the check."""
    try:
        return check(here)
    except OSError as error:
        return fail(name, f"{error.filename}: {error.strerror}", "check that it exists and that you may read it")
    except Exception as error:
        return fail(name, f"{type(error).__name__}: {error}", BROKEN)


def _read(pipes, deadline):
    """The bytes from each pipe until all of them ended, or until the deadline; and the set of those that ended."""
    written = dict.fromkeys(pipes, b"")
    open_pipes = set(pipes)
    while open_pipes and time.monotonic() < deadline:
        ready, _, _ = select.select(list(open_pipes), [], [], max(0, deadline - time.monotonic()))
        for pipe in ready:
            piece = os.read(pipe, 65536)
            written[pipe] += piece
            if not piece:
                open_pipes.remove(pipe)
    for pipe in pipes:
        os.close(pipe)
    return written, set(pipes) - open_pipes


def _end(process):
    """Kill a group, without waiting for processes that cannot be killed, such as those in a hanging file system."""
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # before setsid
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, os.WNOHANG)

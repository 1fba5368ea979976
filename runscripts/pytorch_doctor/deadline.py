"""Runs checks in processes of their own, each with a deadline, for a file system or a command may never answer."""

import json
import os
import select
import signal
import time

from pytorch_doctor import Finding, fail

SLOW = "what it waits for hangs, such as a file system: try again with a larger --timeout, then ask the site"
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
BROKEN = "this is a fault of pytorch-doctor: please report the whole line"


def run_all(groups, here, seconds):
    """The findings of all groups of checks, in their order.

    A group is a list of (name, function of `here` that returns a Finding), run one after the other by one process.
    All of them together have `seconds`.
    """
    running, findings = [], []
    # between a process's start and its place on the list nothing could end it
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
    """Begin with a group, signals masked like this; return its process and the pipe that its findings come from."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    try:
        os.setsid()  # so that the commands that it starts end with it
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, check in group:
            os.write(writing, (json.dumps(_ask(name, check, here)) + "\n").encode())
    finally:
        os._exit(0)  # whatever comes: the rest of the program is not for this process


def _ask(name, check, here):
    """What a check finds; what it did not foresee is its failure."""
    try:
        return check(here)
    except OSError as error:
        return fail(name, f"{error.filename}: {error.strerror}", "see that it is there, and that you may read it")
    except Exception as error:
        return fail(name, f"{type(error).__name__}: {error}", BROKEN)


def _read(pipes, deadline):
    """What came from each pipe until all of them ended, or until the deadline; and the set of those that ended."""
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
    """End what is left of a group, and do not wait for what cannot be ended, as in a file system that is gone."""
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # not yet a group
        os.kill(process, signal.SIGKILL)
    os.waitpid(process, os.WNOHANG)

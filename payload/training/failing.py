# SPDX-License-Identifier: BSD-3-Clause
"""Runs a training on a rank; one that fails exits with status 1 and a last line that names rank and fault."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from training import TrainingError
from training.distributed import process_group
from training.signals import INTERRUPTED
from training.stopping import StopSignals


def rank_name() -> str:
    """Return how messages name this rank, also before it has joined the others."""
    return f"rank {os.environ.get('RANK', '0')}"


def run_training(train: Callable, options: argparse.Namespace, *, interval: int = 16) -> None:
    """Call ``train`` with the options, the world and its signals, which the ranks exchange every ``interval`` steps."""
    with fail_in_one_line():
        try:
            with process_group(os.environ, use_gpu=options.gpu, timeout=options.timeout) as world, StopSignals(
                world, interval=interval, enabled=bool(options.modelpath)
            ) as stop:
                train(options, world, stop)
        except KeyboardInterrupt:
            print(f"{rank_name()}: interrupted, nothing was saved", file=sys.stderr, flush=True)
            sys.exit(INTERRUPTED)


@contextmanager
def fail_in_one_line() -> Iterator[None]:
    """Exit if the ``with`` block raises, with a line; an unexpected fault has its traceback before it."""
    try:
        yield
        return
    except TrainingError as error:
        fault = str(error)
    except Exception as error:
        first = f"{error}".strip().partition("\n")[0].rstrip(" .:") or type(error).__name__
        if type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            fault = (
                f"--compile: the network cannot be compiled ({first}). Put a C++ compiler on PATH or set CXX "
                "(on GPUs: Triton and a C compiler), or omit --compile"
            )
        else:
            traceback.print_exc()
            fault = f"{type(error).__name__}: {error}"
    sys.exit(f"{rank_name()}: {fault}")

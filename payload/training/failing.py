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
from training.stopping import StopSignals


def rank_name() -> str:
    """Return how messages name this rank, also before it has joined the others."""
    return f"rank {os.environ.get('RANK', '0')}"


def run_training(train: Callable, options: argparse.Namespace, *, interval: int = 16) -> None:
    """Call ``train`` with the options, the world and its signals, which the ranks exchange every ``interval`` steps."""
    with fail_in_one_line(), process_group(
        os.environ, use_gpu=options.gpu, timeout=options.timeout
    ) as world, StopSignals(world, interval=interval, enabled=bool(options.modelpath)) as stop:
        train(options, world, stop)


@contextmanager
def fail_in_one_line() -> Iterator[None]:
    """Exit if the ``with`` block raises, with a line; an unexpected fault has its traceback before it."""
    try:
        yield
    except TrainingError as error:
        sys.exit(f"{rank_name()}: {error}")
    except Exception as error:
        traceback.print_exc()
        sys.exit(f"{rank_name()}: {type(error).__name__}: {error}")

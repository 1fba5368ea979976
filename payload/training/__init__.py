# SPDX-License-Identifier: BSD-3-Clause
"""The library of the payload's commands: options, data, process group, checkpoints, metrics; checks and searches.

It reads torch's standard variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) and depends on no scheduler.
"""

import gc
import os
import sys
from contextlib import suppress

# By default, Python looks for garbage after every 700 new objects. To import torch creates 300,000 objects that stay,
# and a fifth of the import's CPU time is this search: https://docs.python.org/3/library/gc.html#gc.set_threshold
gc.set_threshold(100_000)

# Neither an output that the caller closed ends a training, nor a path in it whose bytes are no text
if sys.stdout is None:
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 (until the process ends)
with suppress(AttributeError):  # of a notebook
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]

#: In the last line of a training that diverged. A search tells it by these words from one that failed.
NOT_FINITE = "is not a finite number"


class TrainingError(Exception):
    """A fault that the user can correct; commands print its text as one line and exit with status 1."""

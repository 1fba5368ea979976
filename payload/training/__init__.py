# SPDX-License-Identifier: BSD-3-Clause
"""The library of the payload's commands: options, data, process group, checkpoints, metrics; checks and searches.

It reads torch's standard variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) and depends on no scheduler.
"""

#: In the last line of a training that diverged. A search tells it by these words from one that failed.
NOT_FINITE = "is not a finite number"


class TrainingError(Exception):
    """A fault that the user can correct; commands print its text as one line and exit with status 1."""

"""The library of the payload's commands: options, data, process group, checkpoints, metrics; checks and searches.

It reads torch's standard variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) and depends on no scheduler.
"""


class TrainingError(Exception):
    """A fault that the user can correct; commands print its text as one line and exit with status 1."""

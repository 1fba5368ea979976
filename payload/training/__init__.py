"""The library under mnist_ddp.py and the ladder: options, data, process group, checkpoints, metrics.

It reads the standard torch variables (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) and knows no scheduler.
"""


class TrainingError(Exception):
    """A fault that the user can mend; its text is the one line that mnist_ddp.py prints."""

"""Copies the image or the packed venv of the loaded module to every node of a job, and removes it with the job.

The command (`front`) starts one process on each node (`keeper`). The keepers make a private directory, a tree of
the keepers (`tree`) or Slurm's sbcast fills it, each keeper compares the SHA-256 with the one that the installation
recorded, and serves the path to the ranks of its node until the job ends. Then it removes the directory.
"""

#: In the keepers' environment: the addresses of the front, the word by which both know each other, and the shared file.
ADDRESSES, TOKEN, FILE = "PYTORCH_STAGE_ADDRESSES", "PYTORCH_STAGE_TOKEN", "PYTORCH_STAGE_FILE"
DIRECTORY = "PYTORCH_LAUNCH_STAGE_DIR"
#: How the names of the directories on the nodes begin; the rest is random.
PREFIX = "pytorch-stage-"
#: Names in such a directory: the lock of the processes that use it, and the file until it is verified.
LOCK, PART = "lock", "part"
#: A node without an answer for this time, other than copying, is lost.
ANSWER_SECONDS = 60
#: After a failure, ranks of the node get an answer for this time, so that they do not wait for a staging to begin.
LINGER_SECONDS = 15


class StageError(Exception):
    """Why nothing was staged, as one sentence without its full stop."""


class DamagedError(StageError):
    """The shared file is not the one that was installed."""

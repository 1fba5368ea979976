"""Calls to shared file systems, which a cluster's ranks all send to the same servers."""

from pathlib import Path

from benchmarks.comparison import Comparison, compare
from benchmarks.experiments.steps import NODE_OF_RANKS, RANKS
from benchmarks.file_calls import count_file_calls
from testbed.recipes import CONTAINER, VENV, module

#: What images see of shared file systems under names of their own.
BOUND = ("/runscripts", "/payload", "/user-software")


def metadata(session):
    """Calls per rank of 8 ranks on one node that import torch: from an image, and from files."""
    shared = (session.layout.easybuild, Path.home(), *BOUND)

    def calls_per_rank(recipe):
        env = session.environment(f"module load {module(recipe)}")
        command = ["conda-python-distributed", "-c", "import torch"]
        return count_file_calls(session, env, NODE_OF_RANKS, command, below=shared, ranks=RANKS)

    return lambda: calls_per_rank(CONTAINER), lambda: calls_per_rank(VENV)


EXPERIMENTS = (
    compare(
        Comparison(
            name="metadata",
            title="calls per rank for files on shared file systems by the same 8 ranks, against the host",
            a="system calls that name a file (`strace -e trace=%file`) in the installations or the home directory, of "
            "the ranks of `image-ranks` and their children, divided by 8; not counted are those in the user's own "
            "directory, where Python searches at every import",
            b="the same with the venv module",
            target=0.01,
            unit="calls",
        ),
        metadata,
        rounds=1,
        seconds=60,
        warm_up=False,
        recipes=(CONTAINER, VENV),
        container=True,
        packages=("strace",),
    ),
)

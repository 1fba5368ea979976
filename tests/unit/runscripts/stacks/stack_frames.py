"""Frames of ranks, as py-spy 0.4 names them: [function, file, line], the innermost first."""

from pytorch_stacks import Rank, Thread

SITE = "/opt/venv/lib/python3.11/site-packages"
DISTRIBUTED = f"{SITE}/torch/distributed/distributed_c10d.py"
IN_ALL_REDUCE = [
    ["all_reduce", DISTRIBUTED, 3252],
    ["_exception_logger.<locals>.wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83],
    ["exchange", "/home/u/train.py", 120],
    ["<module>", "/home/u/train.py", 150],
]
IN_NEXT_BATCH = [["next_batch", "/home/u/data.py", 44], ["<module>", "/home/u/train.py", 118]]


def rank(number, frames=IN_ALL_REDUCE, *, node="nid0001", fault=None, threads=(), **fields):
    """A rank as `read_node` describes it."""
    named = [] if fault else [Thread("MainThread", frames), *threads]
    found = Rank(number, 4, "7.0", "0", node, 100 + number, named, fault)
    return found._replace(**fields)

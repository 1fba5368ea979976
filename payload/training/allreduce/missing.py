"""Ends a check in which a collective failed, and names the ranks that do not answer."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback

import torch.distributed as dist

from training.allreduce.who_answers import Answers
from training.distributed import World
from training.slow_ranks import MOST_NAMES

ANSWER_SECONDS = 10  # for a rank to answer after a collective failed; all waiting ranks fail at about the same time
STAY_SECONDS = 2  # rank 0, whose process may host the store, stays so long for ranks that asked later
CLOSE_SECONDS = 5  # limit for closing connections


def close_connections(world: World, error: Exception) -> None:
    """Close the connections between CPUs, so that ranks that wait for this one also fail, and answer.

    NCCL's group stays open: closing it would wait for the other ranks.
    """
    traceback.clear_frames(error.__traceback__)  # the frames keep groups of some ranks alive
    close = threading.Thread(target=dist.destroy_process_group, args=(world.host_group,), daemon=True)
    close.start()
    close.join(CLOSE_SECONDS)


def end_with_names(answers: Answers, timeout: float, error: Exception) -> None:
    """End this process with a line that names the ranks that do not answer; return if all of them answer."""
    missing = answers.missing(ANSWER_SECONDS)
    if missing == []:
        if answers.rank == 0:
            time.sleep(STAY_SECONDS)
        return
    names = ", ".join(missing[:MOST_NAMES]) if missing else "0, or the process that holds its store,"
    more = f" and {len(missing) - MOST_NAMES} more" if missing and len(missing) > MOST_NAMES else ""
    timed_out = re.search("timed? ?out", str(error), re.IGNORECASE)
    failed = f"did not end within {timeout:g} s" if timed_out else "failed"
    several = missing is not None and len(missing) > 1
    fault = "one of them, or its node, is at fault" if several else "it hangs or has ended"
    print(
        f"FAIL rank {names}{more}: no answer, and a collective {failed}: {fault} "
        f"({str(error).splitlines()[0]}). Look at its processes and its log, and try without its node",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    if answers.rank == 0:
        time.sleep(STAY_SECONDS)
    os._exit(1)  # an orderly exit may wait for that rank

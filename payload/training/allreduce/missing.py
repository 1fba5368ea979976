"""Ends a check in which a collective failed, with the names of the ranks that do not answer."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback

import torch.distributed as dist

from training.allreduce.ranks import MOST_NAMES
from training.allreduce.roll_call import RollCall
from training.distributed import World

ANSWER_SECONDS = 10  # that a rank has to answer after a collective failed; all that wait fail at about the same time
STAY_SECONDS = 2  # that rank 0, whose process may hold the store, stays for those that began to ask later
CLOSE_SECONDS = 5  # at most, to close connections


def close_connections(world: World, error: Exception) -> None:
    """Close the connections between CPUs, so that ranks that wait for this one fail in turn and answer.

    The group of NCCL stays: its orderly end would wait for the others.
    """
    traceback.clear_frames(error.__traceback__)  # they hold groups of some of the ranks
    close = threading.Thread(target=dist.destroy_process_group, args=(world.host_group,), daemon=True)
    close.start()
    close.join(CLOSE_SECONDS)


def end_with_names(roll_call: RollCall, timeout: float, error: Exception) -> None:
    """End this process with a line that names the ranks that do not answer; return where all ranks answer."""
    missing = roll_call.missing(ANSWER_SECONDS)
    if missing == []:
        if roll_call.rank == 0:
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
        f"({str(error).splitlines()[0]}); look at its processes and its log, try without its node",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    if roll_call.rank == 0:
        time.sleep(STAY_SECONDS)
    os._exit(1)  # anything else may wait for that rank

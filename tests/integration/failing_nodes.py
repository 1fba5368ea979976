"""A cluster of a test's own, whose nodes the test kills: those of the testbed run the jobs of other tests."""

import contextlib
import os
import signal
from pathlib import Path

from testbed.cluster import slurm
from testbed.layout import Layout


@contextlib.contextmanager
def own_cluster(directory, slurmd_timeout):
    """The Layout of a Slurm cluster in a directory; `slurmd_timeout` is in seconds, as in slurm.conf(5)."""
    layout = Layout(directory)
    layout.claim()
    try:
        slurm.start(layout)
        with layout.slurm_conf.open("a") as conf:
            conf.write(f"SlurmdTimeout={slurmd_timeout}\n")
        slurm.query(layout, ["scontrol", "reconfigure"])
        yield layout
    finally:
        for pid in slurm.running(layout):  # a slurmstepd without its slurmd ignores the signal of `stop`
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        slurm.stop(layout)


def slurmd(layout, node):
    """The process id of a node's slurmd."""
    conf = os.fsencode(layout.slurm_conf)
    for pid in slurm.running(layout, daemons=("slurmd",)):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if conf in words and os.fsencode(node) in words:
            return pid
    raise AssertionError(f"no slurmd of {node}")


def kill_node(layout, node):
    """Kill slurmd and all processes of jobs on a node, as if its power failed. They share a mount namespace."""
    namespace = os.readlink(f"/proc/{slurmd(layout, node)}/ns/mnt")
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if os.readlink(entry / "ns" / "mnt") == namespace:
                os.kill(int(entry.name), signal.SIGKILL)


def kill_slurmd(layout, node):
    """Kill a node's slurmd alone; the ranks continue until Slurm ends the step."""
    os.kill(slurmd(layout, node), signal.SIGKILL)


def kill_slurmd_and_report(layout, node):
    """The same, and report the node as down, as Slurm itself does after SlurmdTimeout."""
    kill_slurmd(layout, node)
    slurm.query(layout, ["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=no answer"])

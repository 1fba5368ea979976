"""payload/jobs/slurm/train_requeue.job: a job that is stopped twice goes on by itself and ends as if it never was."""

import contextlib
import random
import re
import time
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.testbed

#: For what takes a few, on a machine that is busy.
SECONDS = 150
#: 20 steps an epoch; the ranks agree to stop at every 16th.
OPTIONS = "--epochs 24 --batch-size 20 --lr 0.001"


@pytest.fixture
def noise(work):
    """A data set of 400 training and 10 test images that mean nothing: to train on them takes no time."""
    directory = work / "noise"
    directory.mkdir()
    draw = random.Random(28)  # noqa: S311
    for name, count in (("train", 400), ("t10k", 10)):
        size = count.to_bytes(4, "big")
        side = (28).to_bytes(4, "big")
        images = b"\0\0\x08\x03" + size + side + side + draw.randbytes(784 * count)
        (directory / f"{name}-images-idx3-ubyte").write_bytes(images)
        labels = bytes(draw.randrange(10) for _ in range(count))
        (directory / f"{name}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + size + labels)
    return directory


def command_lines():
    """Those of all processes."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield entry.read_text(errors="replace")


class Job:
    """A submitted job script and its log."""

    def __init__(self, testbed, module, work, options):
        self.testbed = testbed
        line = f"sbatch --parsable --ntasks-per-node=1 $PAYLOAD/jobs/slurm/train_requeue.job {options}"
        self.number = testbed.run(f"module load {module}\n{line}", cwd=work).strip()
        self.log = work / f"train-{self.number}.out"

    def said(self):
        """The log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def state(self):
        """PENDING, RUNNING, COMPLETED, ..."""
        return re.search(r"JobState=(\w+)", self.control(f"show job {self.number}"))[1]

    def control(self, command):
        """Run scontrol; return its output."""
        return self.testbed.run(f"scontrol {command}")

    def wait_for(self, condition):
        """Return when `condition` holds; fail with the log if it never does."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{self.state()}\n{self.said()}"
            time.sleep(0.5)

    def start_again(self):
        """Spare the job the two minutes that Slurm lets pass before it starts a requeued one again.

        They are there for what is left of the first start: its end would be taken for that of the second.
        """
        self.wait_for(lambda: self.state() == "PENDING")
        self.wait_for(lambda: not any(f"slurmstepd: [{self.number}." in line for line in command_lines()))
        self.control(f"update JobId={self.number} StartTime=now")


def test_a_job_that_is_warned_and_then_preempted_completes_with_the_uninterrupted_runs_weights(
    testbed, venv, work, noise
):
    job = Job(testbed, venv, work, f"--data {noise} {OPTIONS}")

    job.wait_for(lambda: "epoch 4/24" in job.said())
    testbed.run(f"scancel --signal=USR1 {job.number}")  # what --signal=USR1@120 does before the time limit
    job.start_again()
    assert len(re.findall("^SIGUSR1: stopped after .*", job.said(), re.MULTILINE)) == 1

    job.wait_for(lambda: "epoch 12/24" in job.said())
    job.control(f"requeue {job.number}")  # what a preemption does: SIGTERM, and SIGKILL after KillWait
    job.start_again()
    # saved where it stood, not after the last whole epoch alone
    assert len(re.findall("^SIGTERM: stopped after .*", job.said(), re.MULTILINE)) == 1
    job.wait_for(lambda: job.state() == "COMPLETED")

    assert job.said().count("world size 2,") == 3
    assert job.said().count("resuming after ") == 2
    lines = re.findall(r"^epoch (\d+)/24", job.said(), re.MULTILINE)
    assert sorted({int(line) for line in lines}) == list(range(1, 25))
    testbed.run(
        f"""module load {venv}
srun -N2 --ntasks-per-node=1 conda-python-distributed $PAYLOAD/mnist_ddp.py --data {noise} {OPTIONS} \
--modelpath through""",
        cwd=work,
    )
    # Two ranks' gradients have one sum: the same to the last bit.
    end = torch.load(work / f"model-{job.number}" / "mnist_ddp.pt", weights_only=True)
    through = torch.load(work / "through" / "mnist_ddp.pt", weights_only=True)
    assert end.keys() == through.keys() and all(torch.equal(end[name], through[name]) for name in end)

"""payload/jobs/slurm/train_requeue.job: a job that is stopped twice resumes and ends like an uninterrupted one."""

import contextlib
import random
import re
import time
from pathlib import Path

import pytest
import torch

from testbed.cluster import slurm

pytestmark = pytest.mark.testbed

#: Deadline for events that take a few seconds; long, for a busy machine.
SECONDS = 150
#: 20 steps an epoch; the ranks agree to stop at every 16th.
OPTIONS = "--epochs 24 --batch-size 20 --lr 0.001"


@pytest.fixture
def noise(work):
    """A data set of 400 training and 10 test images of noise: training takes little time."""
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
    """Yield the command lines of all processes."""
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

    def output(self):
        """Return the log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def state(self):
        """Return the state of the job: PENDING, RUNNING, COMPLETED, ..."""
        shown = slurm.query(self.testbed.layout, ["scontrol", "show", "job", self.number])
        return re.search(r"JobState=(\w+)", shown)[1]

    def control(self, command):
        """Run scontrol."""
        self.testbed.run(f"scontrol {command}")

    def wait_for(self, condition):
        """Wait until `condition` holds; after a deadline, fail with the log."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{self.state()}\n{self.output()}"
            time.sleep(0.1)

    def start_again(self):
        """Start a requeued job without the two minutes that Slurm waits.

        Slurm waits for processes of the first start, whose end it would take for the end of the second.
        """
        self.wait_for(lambda: self.state() == "PENDING")
        self.wait_for(lambda: not any(f"slurmstepd: [{self.number}." in line for line in command_lines()))
        self.control(f"update JobId={self.number} StartTime=now")


def test_a_job_that_is_signalled_and_preempted_reaches_the_weights_of_an_uninterrupted_run(
    testbed, venv, work, noise
):
    job = Job(testbed, venv, work, f"--data {noise} {OPTIONS}")

    job.wait_for(lambda: "epoch 4/24" in job.output())
    testbed.run(f"scancel --signal=USR1 {job.number}")  # like --signal=USR1@120 before the time limit
    job.start_again()
    assert len(re.findall("^SIGUSR1: stopped after .*", job.output(), re.MULTILINE)) == 1

    job.wait_for(lambda: "epoch 12/24" in job.output())
    job.control(f"requeue {job.number}")  # like a preemption: SIGTERM, and SIGKILL after KillWait
    job.start_again()
    # saved in the middle of an epoch
    assert len(re.findall("^SIGTERM: stopped after .*", job.output(), re.MULTILINE)) == 1
    job.wait_for(lambda: job.state() == "COMPLETED")

    assert job.output().count("world size 2,") == 3
    assert job.output().count("resuming after ") == 2
    lines = re.findall(r"^epoch (\d+)/24", job.output(), re.MULTILINE)
    assert sorted({int(line) for line in lines}) == list(range(1, 25))
    testbed.run(
        f"""module load {venv}
srun -N2 --ntasks-per-node=1 conda-python-distributed $PAYLOAD/mnist_ddp.py --data {noise} {OPTIONS} \
--modelpath through""",
        cwd=work,
    )
    # The sum of two gradients does not depend on their order: equal to the last bit.
    end = torch.load(work / f"model-{job.number}" / "mnist_ddp.pt", weights_only=True)
    through = torch.load(work / "through" / "mnist_ddp.pt", weights_only=True)
    assert end.keys() == through.keys() and all(torch.equal(end[name], through[name]) for name in end)

"""payload/jobs/slurm/train_requeue.job: a job that is stopped twice resumes and ends like an uninterrupted one."""

import contextlib
import re
import time
from pathlib import Path

import pytest
import torch

from testbed.cluster import slurm

pytestmark = pytest.mark.testbed

#: Deadline for events that take a few seconds; long, for a busy machine.
SECONDS = 900
#: 20 steps an epoch; the ranks agree to stop at every 16th.
OPTIONS = "--epochs 24 --batch-size 20 --lr 0.001"


def command_lines():
    """Yield the command lines of all processes."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield entry.read_text(errors="replace")


class Job:
    """A submitted job script and its log."""

    def __init__(self, testbed, module, work, options, payload):
        self.testbed = testbed
        script = "$PAYLOAD/jobs/slurm/train_requeue.job"
        line = f"PAYLOAD={payload} sbatch --parsable --ntasks-per-node=1 {script} {options}"
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

    def stop_twice(self, first, second):
        """Signal the job after the line `first` of its log, preempt it after `second`, and wait for its end."""
        self.wait_for(lambda: first in self.output())
        self.testbed.run(f"scancel --signal=USR1 {self.number}")  # like --signal=USR1@120 before the time limit
        self.start_again()
        assert len(re.findall("^SIGUSR1: stopped after .*", self.output(), re.MULTILINE)) == 1
        self.wait_for(lambda: second in self.output())
        self.control(f"requeue {self.number}")  # like a preemption: SIGTERM, and SIGKILL after KillWait
        self.start_again()
        assert len(re.findall("^SIGTERM: stopped after .*", self.output(), re.MULTILINE)) == 1
        self.wait_for(lambda: self.state() == "COMPLETED")
        assert self.output().count("world size 2,") == 3
        assert self.output().count("resuming after ") == 2


#: The training; its first two starts wait for a signal in an epoch, as the whole training may take less time than one.
WAITING = """
import os, runpy, sys, time
sys.path.insert(0, os.environ['PAYLOADPYTORCH'])
from training.progress import Progress
from training.stopping import StopSignals
noted, epoch = [], {'0': 'epoch 6/24', '1': 'epoch 14/24'}.get(os.environ.get('SLURM_RESTART_COUNT', '0'))
def note(stop, number, frame, note=StopSignals.note):
    noted.append(number)
    note(stop, number, frame)
def update(progress, *arguments, update=Progress.update):
    while progress.name == epoch and not noted:
        time.sleep(0.05)
    update(progress, *arguments)
StopSignals.note, Progress.update = note, update
sys.argv[0] = os.environ['PAYLOADPYTORCH'] + '/mnist_ddp.py'
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def have_equal_weights(one, other):
    """Return whether two files have the same weights, to the last bit."""
    one, other = (torch.load(path, weights_only=True) for path in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_job_that_is_signalled_and_preempted_reaches_the_weights_of_an_uninterrupted_run(testbed, venv, work, noise):
    (work / "payload").mkdir()
    (work / "payload" / "mnist_ddp.py").write_text(WAITING)
    job = Job(testbed, venv, work, f"--data {noise} {OPTIONS}", work / "payload")
    job.stop_twice("epoch 4/24", "epoch 12/24")  # saves in the middle of an epoch
    lines = re.findall(r"^epoch (\d+)/24", job.output(), re.MULTILINE)
    assert sorted({int(line) for line in lines}) == list(range(1, 25))
    testbed.run(
        f"""module load {venv}
srun -N2 --ntasks-per-node=1 conda-python-distributed $PAYLOAD/mnist_ddp.py --data {noise} {OPTIONS} \
--modelpath through""",
        cwd=work,
    )
    # The sum of two gradients does not depend on their order: equal to the last bit.
    assert have_equal_weights(work / "outputs" / "train" / "mnist_ddp.pt", work / "through" / "mnist_ddp.pt")

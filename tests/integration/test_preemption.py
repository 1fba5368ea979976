"""A training of payload/jobs/slurm/train_requeue.job that is stopped, and resumes."""

import re
import subprocess

import pytest
from waiting import wait_for

from testbed.cluster import slurm

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: 20 steps an epoch; the ranks agree to stop at every 16th.
OPTIONS = "--epochs 6 --batch-size 10 --lr 0.001"


class Job:
    """A submitted job script and its log; in its first start, the ranks wait in an epoch for a signal."""

    def __init__(self, testbed, module, work, epoch):
        self.testbed = testbed
        load = f"module load {module}; script=$PAYLOAD/jobs/slurm/train_requeue.job"
        line = f"PAYLOAD={work} EPOCH={epoch} sbatch --parsable --ntasks-per-node=1 $script --data . {OPTIONS}"
        self.number = testbed.run(f"{load}\n{line}", cwd=work).strip()
        self.log = work / f"train-{self.number}.out"

    def output(self):
        """Return the log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def state(self):
        """Return the state of the job: PENDING, RUNNING, COMPLETED, ..."""
        shown = slurm.query(self.testbed.layout, ["scontrol", "show", "job", self.number])
        return re.search(r"JobState=(\w+)", shown)[1]

    def wait_for(self, condition):
        """Wait until `condition` holds; after a deadline, fail with the log."""
        wait_for(condition, report=lambda: f"{self.state()}\n{self.output()}")

    def stop(self, epoch, command, signal):
        """Stop the job in an epoch by a command, and wait until it is in the queue again without a process."""
        self.wait_for(lambda: f"epoch {epoch - 1}/6" in self.output())
        self.testbed.run(f"{command} {self.number}")
        self.wait_for(lambda: self.state() == "PENDING")
        step = ["pgrep", "--full", rf"^slurmstepd: \[{self.number}\."]
        self.wait_for(lambda: subprocess.run(step, stdout=subprocess.DEVNULL, check=False).returncode == 1)
        assert len(re.findall(f"^{signal}: stopped after .*", self.output(), re.MULTILINE)) == 1, self.output()


#: The training; a job's first start waits for a signal in an epoch, as the whole training may take less time than one.
WAITING = """
import os, runpy, sys, time
sys.path.insert(0, os.environ['PAYLOADPYTORCH'])
from training.progress import Progress
from training.stopping import StopSignals
noted, epoch = [], '' if 'SLURM_RESTART_COUNT' in os.environ else 'epoch ' + os.environ['EPOCH'] + '/6'
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


def test_a_job_that_is_signalled_submitted_again_and_preempted_ends_its_training(testbed, venv, few_images):
    """tests/unit/payload/test_mnist_resuming.py compares the weights with those of an uninterrupted training."""
    work = few_images
    (work / "mnist_ddp.py").write_text(WAITING)
    first = Job(testbed, venv, work, epoch=2)
    first.stop(2, "scancel --signal=USR1", "SIGUSR1")  # like --signal=USR1@120 before the time limit
    testbed.run(f"scancel {first.number}")
    second = Job(testbed, venv, work, epoch=4)
    second.stop(4, "scontrol requeue", "SIGTERM")  # like a preemption: SIGTERM, and SIGKILL after KillWait
    # without the two minutes that Slurm waits for processes of the first start
    testbed.run(f"scontrol update JobId={second.number} StartTime=now")
    second.wait_for(lambda: second.state() == "COMPLETED")
    assert "resuming" not in first.output()
    assert second.output().count("resuming after ") == second.output().count("world size 2,") == 2
    epochs = re.findall(r"^epoch (\d)/6 ", first.output() + second.output(), re.MULTILINE)
    assert sorted(set(epochs)) == list("123456")

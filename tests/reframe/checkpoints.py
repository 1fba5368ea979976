"""Checkpoint and requeue: a job that Slurm stops saves, returns to the queue, and ends where it left."""

import reframe as rfm
import reframe.utility.sanity as sn
from pytorch_job import UPGRADE, PyTorchJob
from reframe.core.backends import getlauncher
from reframe.core.builtins import run_before, sanity_function


@rfm.simple_test
class CheckpointAndRequeue(PyTorchJob):
    """Takes as long as Slurm waits before it starts a requeued job: about two minutes."""

    descr = "A job is signalled, saves a checkpoint, is requeued and resumes"
    nodes = 2
    tags = UPGRADE
    modules = ["MNIST"]

    @run_before("run")
    def set_command(self):
        launcher = self.job.launcher
        # an epoch takes a second or less on GPUs, and the signal must arrive before the last
        self.epochs = 50 if self.has_gpus else 3
        self.job.options += ["--requeue", "--open-mode=append"]
        training = ["$PAYLOAD/mnist_ddp.py", *(["--gpu"] if self.has_gpus else []), f"--epochs {self.epochs}"]
        command = [launcher.run_command(self.job), self.runscript("conda-python-distributed"), "-u"]
        self.job.launcher = getlauncher("local")()
        self.executable = "bash"
        self.executable_opts = ["requeue.bash", *command, *training, "--modelpath", "model"]

    @sanity_function
    def resumes(self):
        return sn.all(
            [
                sn.assert_found(r"^start 0 of job", self.stdout),
                sn.assert_found(r"^SIGUSR1: stopped after ", self.stdout),
                sn.assert_found(r"^training: status 75$", self.stdout),
                sn.assert_found(r"^start 1 of job", self.stdout),
                sn.assert_found(r"^resuming after ", self.stdout),
                sn.assert_found(rf"^epoch {self.epochs}/{self.epochs} ", self.stdout),
                sn.assert_found(r"^training: status 0$", self.stdout),
            ]
        )

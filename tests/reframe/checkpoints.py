"""Checkpoint and requeue: a job that Slurm stops saves, returns to the queue, and ends where it left."""

import reframe as rfm
from pytorch_job import UPGRADE, PyTorchJob, passes
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
        self.run_payload("mnist_ddp.py", f"--epochs {self.epochs}", "--modelpath model")
        command = [launcher.run_command(self.job), self.executable, *self.executable_opts]
        self.job.launcher = getlauncher("local")()
        self.executable = "bash"
        self.executable_opts = ["requeue.bash", *command]

    @sanity_function
    def resumes(self):
        first = "^start 0 of job", "^SIGUSR1: stopped after ", "^training: status 75$"
        second = "^start 1 of job", "^resuming after ", f"^epoch {self.epochs}/{self.epochs} ", "^training: status 0$"
        return passes(self.stdout, *first, *second)

"""What Slurm reports about the GPUs of a task."""

from pytorch_launch import is_number
from pytorch_launch.value import Value


class StepGpus(Value):
    """What Slurm reports about the GPUs of this task on this node.

    `numbers`       on the node, whatever a device cgroup hides; None if not reported. A task to which
                    --gpus-per-task or --gpu-bind gives fewer than the step has sees its own here.
    `count`         number of GPUs of all tasks of the step here, None if not reported
    `is_torchruns`  true if Slurm gave them to torchrun, whose workers share them

    (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; gres_common.c; seen with 22.05.) srun passes none of its options on.
    """

    __slots__ = ("count", "is_torchruns", "numbers")

    def gives_each_its_own(self, count, local_size, limited):
        """Whether no other of the `local_size` ranks sees the `count` GPUs that this rank sees.

        `limited` is true if variables hide GPUs from this rank: one that sees a single GPU, as after a
        wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, is taken to have it for itself.
        """
        if self.count is not None and count * local_size > self.count:
            return False
        if count == 1:
            return limited or self.count is not None
        reported = self.count is not None and self.numbers is not None
        return reported and len(self.numbers) == count and not self.is_torchruns


def step_gpus(env):
    """The StepGpus of a process with environment `env`."""
    numbers = env.get("SLURM_STEP_GPUS")
    if numbers is None and not env.get("SLURM_STEP_ID"):
        # of the batch script's node, though all steps inherit it
        numbers = env.get("SLURM_JOB_GPUS")
    entries = (numbers or "").split(",")
    count = env.get("SLURM_GPUS_ON_NODE", "")
    return StepGpus(
        numbers=[int(entry) for entry in entries] if all(map(is_number, entries)) else None,
        count=int(count) if is_number(count) else None,
        is_torchruns=bool(env.get("TORCHELASTIC_RUN_ID")),
    )

# SPDX-License-Identifier: BSD-3-Clause
"""What Slurm reports about the GPUs of a task."""

from pytorch_launch import Value, is_number


class StepGpus(Value):
    """What Slurm reports about the GPUs of this task on this node.

    `numbers`       on the node, whatever a device cgroup hides; None if not reported. A task to which
                    --gpus-per-task or --gpu-bind gives fewer than the step has sees its own here.
    `count`         number of GPUs of all tasks of the step here, None if not reported
    `is_torchruns`  true if Slurm gave them to torchrun, whose workers share them

    (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; gres_common.c; seen with 22.05.) srun passes none of its options on.
    """

    __slots__ = ("count", "is_torchruns", "numbers")


def step_gpus(env):
    numbers = env.get("SLURM_STEP_GPUS")
    if numbers is None and env.get("SLURM_STEP_ID", "") in ("", "-5"):  # a batch script has -5 with Slurm 26.05
        # of the batch script's node, though all steps inherit it
        numbers = env.get("SLURM_JOB_GPUS")
    entries = (numbers or "").split(",")
    count = env.get("SLURM_GPUS_ON_NODE", "")
    return StepGpus(
        numbers=[int(entry) for entry in entries] if all(map(is_number, entries)) else None,
        count=int(count) if is_number(count) else None,
        is_torchruns=bool(env.get("TORCHELASTIC_RUN_ID")),
    )

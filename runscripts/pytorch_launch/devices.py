# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the GPU of a rank among those that it may see."""

from pytorch_launch import Problem, Value
from pytorch_launch.topology import all_gpus
from pytorch_launch.visible import CUDA


class Devices(Value):
    """The GPUs of one rank.

    `vendor`          "amd", "nvidia" or "intel", None without GPUs
    `count`           number of GPUs that this rank sees, counted as torch's device_count() does
    `index`           the one that it uses, below `count`; None without GPUs
    `held`            the physical GPUs that no other rank uses, or else the one at `index`; empty if they are not known
    `candidate_gpus`  the physical GPUs that the ranks of this node may use, with those of `held`; None if not known
    `sharers`         number of ranks of this node that use the GPU at `index`
    `share_index`     position of this rank among them, from 0
    `changes`         variables to set, name to value
    `warnings`        Problems
    `lists`           variables that decide which GPUs are visible, name to the entries, one for each GPU
    `slots`           number of ranks that can have a GPU, or an instance of one, for themselves; `count` but with MIG
    `local_rank_is_index`  false if there is no device with the number LOCAL_RANK
    """

    DEFAULTS = {
        **{"vendor": None, "count": 0, "index": None, "held": (), "candidate_gpus": None, "sharers": 1},
        **{"share_index": 0, "changes": {}, "warnings": (), "lists": {}, "slots": None, "local_rank_is_index": True},
    }
    __slots__ = tuple(DEFAULTS)

    @property
    def gpu(self):
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees only the GPU at `index`, as its device 0."""
        if self.count < 2:
            return {}
        return {name: entries[self.index] for name, entries in self.lists.items()}


def choose_devices(seen, root, local_rank, local_size):
    """The Devices of rank `local_rank` of the `local_size` on this node; `seen` is its Visible, or None."""
    if seen is None:
        return Devices()
    count = len(seen.gpus)
    fields = {"warnings": seen.warnings}
    instances = seen.lists.get(CUDA, ()) if count == 1 else ()
    if len(instances) > 1:  # of GPUs in NVIDIA's mode MIG, which a process sees one of
        index = local_rank % len(instances)
        fields.update(index=0, local_rank_is_index=local_rank == 0, slots=len(instances))
        if local_size > 1:
            seen = seen.replace(changes={**seen.changes, CUDA: instances[index]})
            fields["sharers"] = len(range(index, local_size, len(instances)))
        if local_size > len(instances):
            fault = f"{local_size} ranks on this node share {len(instances)} instances of GPUs (MIG)"
            fields["warnings"] = [*seen.warnings, Problem(fault, f"start at most {len(instances)} per node")]
    elif count:
        fields["local_rank_is_index"] = local_rank < count
        fields["index"] = 0
        if local_size > 1 and not _has_own_gpus(seen, local_size):
            fields.update(_share(seen, local_rank, local_size))
        elif None not in seen.gpus:
            fields["held"] = seen.gpus
            fields["candidate_gpus"] = seen.gpus if local_size == 1 else _candidates(root, seen, local_size)
    return Devices(vendor=seen.present[0].vendor, count=count, lists=seen.lists, changes=seen.changes, **fields)


def _has_own_gpus(seen, local_size):
    """Whether no other of the `local_size` ranks sees the GPUs that this rank sees.

    A rank that sees a single GPU by a variable, as after a wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, is taken
    to have it for itself.
    """
    step, count = seen.step, len(seen.gpus)
    if step.count is not None and count * local_size > step.count:
        return False
    if count == 1:
        return seen.is_limited or step.count is not None
    reported = step.count is not None and step.numbers is not None
    return reported and len(step.numbers) == count and not step.is_torchruns


def _share(seen, local_rank, local_size):
    """The fields of Devices of a rank whose GPUs other ranks of the node see too."""
    count, of_step = len(seen.gpus), seen.step.count
    index = local_rank % count
    fields = {"index": index, "held": [gpu for gpu in seen.gpus[index : index + 1] if gpu is not None]}
    if count < local_size <= (of_step or 0):
        # as with --gpu-bind=closest where a NUMA node has several GPUs
        problem = Problem(
            f"each of {local_size} ranks on this node sees {count} of the step's {of_step} GPUs, and Slurm does not "
            "report which ranks see the same ones",
            "use srun --gpu-bind=none or --gpus-per-task=1",
        )
        return {**fields, "warnings": [*seen.warnings, problem]}
    # Intel's GPUs take several ranks each (ALCF, "Running with Multiple Compute Command Streamers")
    if local_size > count and seen.present[0].vendor != "intel":
        problem = Problem(
            f"{local_size} ranks on this node share {count} GPU{'s' * (count > 1)}, and NCCL fails with two on one",
            f"start at most {count} per node, or request more GPUs",
        )
        fields["warnings"] = [*seen.warnings, problem]
    fields["sharers"] = len(range(index, local_size, count))
    fields["share_index"] = local_rank // count
    fields["candidate_gpus"] = seen.gpus[:local_size] if None not in seen.gpus else None
    return fields


def _candidates(root, seen, local_size):
    """The GPUs that all ranks of the node may use, if each has as many for itself; None if not known."""
    step, held, present = seen.step, seen.gpus, seen.present
    total = step.count or len(held) * local_size
    if step.numbers is not None and len(step.numbers) == total and max(step.numbers) < len(present):
        candidates = [present[number] for number in step.numbers]
    elif len(present) == total:
        candidates = present
    else:
        own = {gpu.location: gpu for gpu in held}
        candidates = [own.get(gpu.location, gpu) for gpu in all_gpus(root, held[0].vendor)]
    return candidates if len(candidates) == total and all(gpu in candidates for gpu in held) else None

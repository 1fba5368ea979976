"""Chooses the GPU of a rank among those that it may see."""

from pytorch_launch import Problem
from pytorch_launch.launchers.gpus import step_gpus
from pytorch_launch.topology import all_gpus, gpus
from pytorch_launch.value import Value
from pytorch_launch.visible import is_limited, visible_gpus


class Devices(Value):
    """The GPUs of one rank.

    `vendor`          "amd" or "nvidia", None without GPUs
    `count`           number of GPUs that this rank sees, counted as torch.cuda.device_count() does
    `index`           the one that it uses, below `count`; None without GPUs
    `held`            the physical GPUs that no other rank uses, or else the one at `index`; empty if they are not known
    `candidate_gpus`  the physical GPUs that the ranks of this node may use, with those of `held`; None if not known
    `sharers`         number of ranks of this node that use the GPU at `index`
    `share_index`     position of this rank among them, from 0
    `changes`         variables to set, name to value
    `warnings`        Problems
    `lists`           variables that decide which GPUs are visible, name to the entries, one for each GPU
    `local_rank_is_index`  false if there is no device cuda:LOCAL_RANK
    """

    __slots__ = (
        *("vendor", "count", "index", "held", "candidate_gpus", "sharers", "share_index"),
        *("changes", "warnings", "lists", "local_rank_is_index"),
    )
    DEFAULTS = {
        **{"vendor": None, "count": 0, "index": None, "held": (), "candidate_gpus": None, "sharers": 1},
        **{"share_index": 0, "changes": {}, "warnings": (), "lists": {}, "local_rank_is_index": True},
    }

    @property
    def gpu(self):
        """The physical GPU that this rank uses, None if not known."""
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees only the GPU at `index`, as its device 0."""
        if self.count < 2:
            return {}
        return {name: entries[self.index] for name, entries in self.lists.items()}


def choose_devices(env, root, local_rank, local_size):
    """The Devices of rank `local_rank` of the `local_size` on this node."""
    present = gpus(root)
    if not present:
        return Devices()
    vendor = present[0].vendor
    seen = visible_gpus(env, present)
    visible = seen.gpus
    devices = Devices(
        vendor=vendor, count=len(visible), lists=seen.lists, changes=seen.changes, warnings=seen.warnings
    )
    if not visible:
        return devices

    devices = devices.replace(local_rank_is_index=local_rank < devices.count)
    step = step_gpus(env)
    if local_size > 1 and not step.gives_each_its_own(devices.count, local_size, is_limited(env, vendor)):
        return _share(devices, visible, step, local_rank, local_size)
    if None in visible:
        return devices.replace(index=0)
    candidates = visible if local_size == 1 else _candidates(root, step, visible, present, local_size)
    return devices.replace(index=0, held=visible, candidate_gpus=candidates)


def _share(devices, visible, step, local_rank, local_size):
    """`devices` of a rank whose GPUs in `visible` other ranks of the node see too."""
    count = devices.count
    index = local_rank % count
    devices = devices.replace(index=index, held=[visible[index]] if visible[index] is not None else [])
    if count < local_size <= (step.count or 0):
        # as with --gpu-bind=closest where a NUMA node has several GPUs
        problem = Problem(
            f"each of {local_size} ranks on this node sees {count} of the step's {step.count} GPUs, and Slurm does not "
            "report which ranks see the same ones",
            "use srun --gpu-bind=none or --gpus-per-task=1",
        )
        return devices.replace(warnings=[*devices.warnings, problem])
    warnings = devices.warnings
    if local_size > count:
        problem = Problem(
            f"{local_size} ranks on this node share {count} GPU{'s' * (count > 1)}, and NCCL fails with two on one",
            f"start at most {count} per node, or request more GPUs",
        )
        warnings = [*warnings, problem]
    return devices.replace(
        sharers=len(range(index, local_size, count)),
        share_index=local_rank // count,
        candidate_gpus=visible[:local_size] if None not in visible else None,
        warnings=warnings,
    )


def _candidates(root, step, held, present, local_size):
    """The GPUs that all ranks of the node may use, if each has as many for itself as `held`; None if not known."""
    total = step.count or len(held) * local_size
    if step.numbers is not None and len(step.numbers) == total and max(step.numbers) < len(present):
        candidates = [present[number] for number in step.numbers]
    elif len(present) == total:
        candidates = present
    else:
        candidates = all_gpus(root, held[0].vendor)
    own = {gpu.location: gpu for gpu in held}
    candidates = [own.get(gpu.location, gpu) for gpu in candidates]
    return candidates if len(candidates) == total and all(gpu in candidates for gpu in held) else None

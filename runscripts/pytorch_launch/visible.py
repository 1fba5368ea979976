# SPDX-License-Identifier: BSD-3-Clause
"""The GPUs that the environment leaves visible to a rank.

What Slurm or the user has limited stays limited. The variables that do so:

ROCR_VISIBLE_DEVICES                        AMD: the GPUs that the runtime finds at all
HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   AMD: numbers among those; HIP reads the second if the first is not set
CUDA_VISIBLE_DEVICES                        NVIDIA: numbers of GPUs, or their UUIDs
ZE_AFFINITY_MASK                            Intel, see `xpu`

(ROCm, "GPU isolation techniques"; CUDA Programming Guide, "CUDA Environment Variables".)
"""

from pytorch_launch import Problem, Value, is_number
from pytorch_launch.launchers import step_gpus
from pytorch_launch.topology import gpus

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"

#: The variables that hide GPUs of a vendor.
LIMITS = {"amd": (ROCR, HIP, CUDA), "nvidia": (CUDA,), "intel": ("ZE_AFFINITY_MASK",)}

# Values that leave no GPU visible; the last is that of older Slurm, for a job without GPUs.
NO_GPU = ("", "-1", "NoDevFiles")


class Visible(Value):
    """The GPUs that a rank sees.

    `present`     those of this node, one or more of one vendor, in the order in which its runtime counts them
    `gpus`        those that the rank sees, in the order of its devices, None for one that is not known
    `is_limited`  whether variables may hide GPUs
    `step`        what the launcher reports about them, a StepGpus
    `lists`       variables that decide which GPUs are visible, name to the entries, one for each GPU
    `changes`     variables to set, name to value
    `warnings`    Problems
    """

    __slots__ = ("changes", "gpus", "is_limited", "lists", "present", "step", "warnings")


def visible_gpus(env, root):
    """What a rank sees of the GPUs of its node, None on a node without GPUs."""
    present = gpus(root)
    if not present:
        return None
    vendor = present[0].vendor
    step = step_gpus(env)
    if vendor == "intel":
        from pytorch_launch.xpu import level_zero_devices, see_intel

        found, lists, changes, warnings = see_intel(env, present)
        present = level_zero_devices(env, present)
    else:
        see = _see_amd if vendor == "amd" else _see_nvidia
        found, lists, changes, warnings = see(env, present, step)
    return Visible(
        present=present,
        gpus=found,
        is_limited=any(name in env for name in LIMITS[vendor]),
        step=step,
        lists=lists,
        changes=changes,
        warnings=warnings,
    )


def _see_amd(env, present, _):
    left = present if ROCR not in env else _listed(env[ROCR], present)
    lists = {ROCR: _entries(env, ROCR, len(left))}
    warnings = []
    if not left and env[ROCR] not in NO_GPU:
        warnings.append(_no_such(ROCR, env[ROCR], present))
    names = [name for name in (HIP, CUDA) if name in env]
    if not names or not left:
        return left, lists, {}, warnings

    value = env[names[0]]
    if ROCR in env:
        value = _numbers_after_rocr(value, lists[ROCR])
        if value != env[names[0]]:
            fault = (
                f"{ROCR}={env[ROCR]} leaves {len(left)} GPU{'s' * (len(left) > 1)}, counted from 0, so "
                f"{names[0]}={env[names[0]]} is set to {value}"
            )
            warnings.append(Problem(fault, "unset it where both are set"))
    visible = _listed(value, left)
    if not visible and value not in NO_GPU:
        warnings.append(_no_such(names[0], value, left))
    if len(names) == 2 and env[HIP] != env[CUDA]:
        fault = f"{HIP}={env[HIP]}, which takes precedence, and {CUDA}={env[CUDA]} differ"
        warnings.append(Problem(fault, "unset one of them"))
    changes = {name: value for name in names if env[name] != value}
    return visible, {name: value.split(",") for name in names}, changes, warnings


def _numbers_after_rocr(value, rocr):
    """The list `value` for HIP, in numbers below len(rocr): those after `rocr`, the entries that ROCR left.

    Slurm's generic GRES sets ROCR_VISIBLE_DEVICES=3 and CUDA_VISIBLE_DEVICES=3, which is the fourth of
    one GPU, so none (Parsl/parsl#3858). A list that is valid, or that is empty, is returned unchanged.
    """
    entries = [entry.strip() for entry in value.split(",")]
    if not all(is_number(entry) for entry in entries) or all(int(entry) < len(rocr) for entry in entries):
        return value
    named = all(entry in rocr for entry in entries)
    return ",".join(str(number) for number in (map(rocr.index, entries) if named else range(len(rocr))))


def _see_nvidia(env, present, step):
    # the default is the fastest first; Slurm counts in the order of PCI addresses (gres.html, "GPU Management")
    changes, warnings = {} if env.get(CUDA_ORDER) else {CUDA_ORDER: "PCI_BUS_ID"}, []
    value = env.get(CUDA)
    if value is not None and value.startswith("MIG-"):
        # CUDA finds the first alone (MIG User Guide, "CUDA Device Enumeration"): `devices` gives each rank its own
        return [None], {CUDA: [entry.strip() for entry in value.split(",") if entry.strip()]}, changes, warnings
    if value is not None and value.startswith("GPU-"):
        visible = _listed(value, present)
    else:
        visible = _numbered(env, value, present, step)
    if value is not None and value not in NO_GPU and not visible:
        warnings.append(_no_such(CUDA, value, present))
    return visible, {CUDA: _entries(env, CUDA, len(visible))}, changes, warnings


def _numbered(env, value, present, step):
    """The GPUs of a list of numbers, all of them without a list; None for each if they are not known."""
    total = len(present)
    if value is None:
        listed = list(range(min(step.count or total, total) if step.numbers is None else len(step.numbers)))
        # otherwise it is not known whether a device cgroup hides the others
        known = listed == step.numbers or len(listed) == total
        numbers = listed if known else None
    else:
        listed = []
        for entry in map(str.strip, value.split(",")):
            if not is_number(entry) or int(entry) >= total:
                break  # CUDA ignores what comes after an invalid one
            listed.append(int(entry))
        if len(set(listed)) < len(listed):
            return []  # as CUDA does with a GPU named twice (torch.cuda, _parse_visible_devices)
        numbers = _numbers_on_node(listed, step, total)
    if numbers is None or max(numbers, default=0) >= total or env.get(CUDA_ORDER) not in (None, "", "PCI_BUS_ID"):
        return [None] * len(listed)
    return [present[number] for number in numbers]


def _numbers_on_node(listed, step, total):
    """The numbers on the node, of `total` GPUs, of those `listed`; None if they are ambiguous.

    In a device cgroup CUDA counts the GPUs of the step from 0, without one those of the node. The environment does
    not show which of both applies.
    """
    if step.numbers is None:
        return listed if step.count is None or step.count >= total else None
    # Slurm may have written the list for these: both ascend, in the same order
    ascends = len(listed) == len(step.numbers) and listed == sorted(listed)
    if ascends and all(local <= number for local, number in zip(listed, step.numbers)):
        return step.numbers
    in_cgroup = [step.numbers[number] for number in listed] if max(listed, default=0) < len(step.numbers) else None
    without = listed if all(number in step.numbers for number in listed) else None
    if in_cgroup is None or in_cgroup == without:
        return without
    return in_cgroup if without is None else None


def _listed(value, present):
    """The GPUs of a list of numbers and UUIDs, up to the first entry that is invalid or repeated.

    ROCr (amd_filter_device.h), HIP (rocdevice.cpp) and CUDA read it in this way; UUIDs may be abbreviated.
    """
    chosen = []
    for entry in map(str.strip, value.split(",")):
        if is_number(entry):
            matches = present[int(entry) : int(entry) + 1]
        elif entry.startswith("GPU-"):
            matches = [gpu for gpu in present if (gpu.uuid or "").lower().startswith(entry.lower())]
        else:
            matches = []
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return chosen


def _entries(env, name, count):
    """The first `count` entries of the list in variable `name`, or their numbers if it is not set."""
    if name not in env:
        return [str(number) for number in range(count)]
    return [entry.strip() for entry in env[name].split(",")][:count]


def _no_such(name, value, present):
    fault = f"{name}={value} matches none of the {len(present)} GPUs here, so no GPU is visible"
    return Problem(fault, f"correct or unset {name}")

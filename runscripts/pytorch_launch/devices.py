# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the GPU of a rank among those that the environment leaves visible.

What Slurm or the user has limited stays limited. The variables that do so:

ROCR_VISIBLE_DEVICES                        AMD: the GPUs that the runtime finds at all
HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   AMD: numbers among those; HIP reads the second if the first is not set
CUDA_VISIBLE_DEVICES                        NVIDIA: numbers of GPUs, or their UUIDs
ZE_AFFINITY_MASK                            Intel: numbers of GPUs or tiles

(ROCm, "GPU isolation techniques"; CUDA Programming Guide, "CUDA Environment Variables".)
"""

from pytorch_launch import Problem, Value, is_number

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"
MASK = "ZE_AFFINITY_MASK"
HIERARCHY = "ZE_FLAT_DEVICE_HIERARCHY"
INTEL_ORDER = "ZE_ENABLE_PCI_ID_DEVICE_ORDER"

#: The variables that hide GPUs of a vendor.
LIMITS = {"amd": (ROCR, HIP, CUDA), "nvidia": (CUDA,), "intel": (MASK,)}

# Values that leave no GPU visible; the last is that of older Slurm, for a job without GPUs.
NO_GPU = ("", "-1", "NoDevFiles")

# Beginning of the name of an instance of a GPU. CUDA finds the first in a list alone (MIG User Guide, "CUDA Device
# Enumeration"): each rank gets its own.
MIG = "MIG-"


class Devices(Value):
    """The GPUs of one rank.

    `vendor`    "amd", "nvidia" or "intel", None without GPUs
    `count`     number of GPUs that this rank sees, counted as torch's device_count() does, MIG's instances alike
    `index`     the one that it uses, below `count`; None without GPUs
    `held`      the physical GPUs that no other rank uses, or else the one at `index`; empty if they are not known
    `claims`    the physical GPUs of all ranks of this node, a shared one once for each rank; None if not known
    `own`       the positions there of this rank's
    `changes`   variables to set, name to value
    `warnings`  Problems
    `lists`     variables that decide which GPUs are visible, name to the entries, one for each GPU
    """

    DEFAULTS: dict = {
        **{"vendor": None, "count": 0, "index": None, "held": (), "claims": None, "own": ()},
        **{"changes": {}, "warnings": (), "lists": {}},
    }

    @property
    def gpu(self):
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees only the GPU at `index`, as its device 0."""
        return {name: entries[self.index] for name, entries in self.lists.items()} if self.count > 1 else {}


def choose_devices(env, node, local_rank, local_size):
    """The Devices of rank `local_rank` of the `local_size` on `node`, a Node."""
    if not node.gpus:
        return Devices()
    present, found, lists, changes, warnings = visible_gpus(env, node)
    count, vendor, of_step = len(found), present[0].vendor, step_gpus(env)[1] or 0
    index, held, claims, own = 0 if count else None, found, None, ()
    if local_size == 1 or not count or _has_own_gpus(env, vendor, count, local_size):
        claims = found if local_size == 1 else _claims(env, node, present, found, local_size)
        own = [claims.index(gpu) for gpu in found] if claims else ()
    else:
        index = local_rank % count
        held = found[index : index + 1]
        if count < local_size <= of_step:  # as with --gpu-bind=closest where a NUMA node has several GPUs
            fault = f"each of {local_size} ranks on this node sees {count} of the step's {of_step} GPUs, and Slurm "
            fault += "does not report which ranks see the same ones"
            warnings = [*warnings, Problem(fault, "use srun --gpu-bind=none or --gpus-per-task=1")]
        else:
            claims, own = [found[rank % count] for rank in range(local_size)], [local_rank]
            # Intel's GPUs take several ranks each (ALCF, "Running with Multiple Compute Command Streamers")
            if local_size > count and vendor != "intel":
                gpus = f"{count} GPU{'s' * (count > 1)}"
                fault = f"{local_size} ranks on this node share {gpus}, and NCCL fails with two on one"
                warnings = [*warnings, Problem(fault, f"start at most {count} per node, or request more GPUs")]
    places = {"held": held, "claims": claims, "own": own} if count and None not in found else {}
    devices = Devices(
        vendor=vendor, count=count, index=index, lists=lists, changes=changes, warnings=warnings, **places
    )
    if local_size > 1 and env.get(CUDA, "").startswith(MIG) and vendor == "nvidia":  # a process sees one instance
        return devices.replace(count=1, index=0, lists={}, changes={**changes, **devices.narrowed()})
    return devices


def step_gpus(env):
    """What Slurm reports about GPUs on this node: the numbers of this task's, and how many all tasks of the step have.

    None for what it does not report. A device cgroup does not change the numbers. srun passes none of its options on.
    (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; gres_common.c; seen with 22.05.)
    """
    entries, count = env.get("SLURM_STEP_GPUS", "").split(","), env.get("SLURM_GPUS_ON_NODE", "")
    numbers = [int(entry) for entry in entries] if all(map(is_number, entries)) else None
    return numbers, int(count) if is_number(count) else None


def _has_own_gpus(env, vendor, count, local_size):
    """Whether no other of the `local_size` ranks sees the `count` GPUs that this rank sees.

    A rank that sees a single GPU by a variable, as after a wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, is taken
    to have it for itself.
    """
    numbers, of_step = step_gpus(env)
    if of_step is not None and count * local_size > of_step:
        return False
    if count == 1:
        return of_step is not None or any("," not in env.get(name, ",") for name in LIMITS[vendor])
    # those that Slurm gave to torchrun are shared by its workers
    return of_step is not None and len(numbers or ()) == count and not env.get("TORCHELASTIC_RUN_ID")


def _claims(env, node, present, held, local_size):
    """The GPUs that all ranks of the node may use, if each has as many for itself; None if not known."""
    numbers, of_step = step_gpus(env)
    total = of_step or len(held) * local_size
    claims = present if len(present) == total else node.all_gpus
    if numbers and len(numbers) == total and max(numbers) < len(present):
        claims = [present[number] for number in numbers]
    return claims if len(claims) == total and all(gpu in claims for gpu in held) else None


def visible_gpus(env, node):
    """What a process sees of the GPUs of a `node` that has some.

    All that there are, in the order in which their runtime counts them; those that it sees, in the order of its
    devices, None for one that is not known; and `lists`, `changes` and `warnings` as in Devices.
    """
    see = {"amd": _see_amd, "nvidia": _see_nvidia, "intel": _see_intel}
    return see[node.gpus[0].vendor](env, node.gpus)


def _see_amd(env, present):
    left = present if ROCR not in env else _listed(env[ROCR], present)
    lists, warnings = {ROCR: _entries(env, ROCR, len(left))}, _warn_of_none(env, ROCR, left, present)
    names = [name for name in (HIP, CUDA) if name in env]
    if not names or not left:
        return present, left, lists, {}, warnings
    value = env[names[0]]
    if ROCR in env:
        value = _numbers_after_rocr(value, lists[ROCR])
        if value != env[names[0]]:
            fault = f"{ROCR}={env[ROCR]} leaves {len(left)} GPU{'s' * (len(left) > 1)}, counted from 0, so "
            fault += f"{names[0]}={env[names[0]]} is set to {value}"
            warnings.append(Problem(fault, "unset it where both are set"))
    visible = _listed(value, left)
    warnings += _warn_of_none({names[0]: value}, names[0], visible, left)
    changes = {name: value for name in names if env[name] != value}
    return present, visible, {name: value.split(",") for name in names}, changes, warnings


def _numbers_after_rocr(value, rocr):
    """The list `value` for HIP, in numbers below len(rocr): those after `rocr`, the entries that ROCR left.

    Slurm's generic GRES sets ROCR_VISIBLE_DEVICES=3 and CUDA_VISIBLE_DEVICES=3, which is the fourth of
    one GPU, so none (Parsl/parsl#3858). A list that is valid, or that is empty, is returned unchanged.
    """
    entries = [entry.strip() for entry in value.split(",")]
    if not all(is_number(entry) for entry in entries) or all(int(entry) < len(rocr) for entry in entries):
        return value
    named = [rocr.index(entry) for entry in entries if entry in rocr]
    return ",".join(map(str, named if len(named) == len(entries) else range(len(rocr))))


def _see_nvidia(env, present):
    # the default is the fastest first; Slurm counts in the order of PCI addresses (gres.html, "GPU Management")
    changes, value = {} if env.get(CUDA_ORDER) else {CUDA_ORDER: "PCI_BUS_ID"}, env.get(CUDA, "")
    if value.startswith(MIG):
        instances = [entry.strip() for entry in value.split(",") if entry.strip()]
        return present, [None] * len(instances), {CUDA: instances}, changes, []
    # without a list and a cgroup CUDA sees those of other jobs too
    visible = _listed(value, present) if CUDA in env else present[: step_gpus(env)[1] or None]
    entries = _entries(env, CUDA, len(visible) + 1)
    if len(set(entries)) < len(entries):
        visible = []  # as CUDA does with a GPU named twice (torch.cuda, _parse_visible_devices)
    warnings = _warn_of_none(env, CUDA, visible, present)
    if env.get(CUDA_ORDER) not in (None, "", "PCI_BUS_ID") and not value.startswith("GPU-"):
        visible = [None] * len(visible)
    return present, visible, {CUDA: entries[: len(visible)]}, changes, warnings


def _see_intel(env, tiles):
    """The same, of the `tiles` that are here; a device as its first tile.

    Level Zero counts devices by ZE_FLAT_DEVICE_HIERARCHY. In FLAT and COMBINED, of which FLAT is the default, each tile
    of a GPU is a device, and ZE_AFFINITY_MASK=0,11 names tiles; in COMPOSITE each GPU is one, and
    ZE_AFFINITY_MASK=0.1,5 names tile 1 of the first GPU and both of the last. The mask is a set: the order of devices
    stays. A mask of the other form leaves no device; an empty one is ignored.
    (Intel, "Flattening GPU Tile Hierarchy"; oneAPI GPU Optimization Guide, "Exposing the Device Hierarchy"; ALCF,
    "Running Jobs on Aurora", "Binding MPI ranks to GPUs".)
    """
    mask, is_composite = env.get(MASK), env.get(HIERARCHY, "").upper() == "COMPOSITE"
    changes, found, lists = {} if env.get(INTEL_ORDER) else {INTEL_ORDER: "1"}, [], []
    entries = [*map(str.strip, (mask or "").split(","))]
    present = [tile for tile in tiles if not (is_composite and tile.partition)]
    for number, device in enumerate(present):
        names = [str(number)]
        if is_composite:
            names += [f"{number}.{tile.partition}" for tile in tiles if tile.pci == device.pci]
        listed = [name for name in names if name in entries] if mask else names[:1]
        if listed:
            lists.append(",".join(listed))
            # only in PCI order it is known which device is which
            found.append(device if changes or env[INTEL_ORDER] == "1" else None)
    form = "<GPU> or <GPU>.<tile>" if is_composite else "<tile>"
    warnings = _warn_of_none(env, MASK, found, tiles, f"; its entries are {form} ({HIERARCHY})")
    return present, found, {MASK: lists}, changes, warnings


def _listed(value, present):
    """The GPUs of a list of numbers and UUIDs, up to the first entry that is invalid or repeated.

    ROCr (amd_filter_device.h), HIP (rocdevice.cpp) and CUDA read it in this way; UUIDs may be abbreviated.
    """
    chosen = []
    for entry in map(str.strip, value.split(",")):
        matches = present[int(entry) : int(entry) + 1] if is_number(entry) else []
        if entry.startswith("GPU-"):
            matches = [gpu for gpu in present if (gpu.uuid or "").lower().startswith(entry.lower())]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return chosen


def _entries(env, name, count):
    """The first `count` entries of the list in variable `name`, or their numbers if it is not set."""
    return [entry.strip() for entry in env[name].split(",")][:count] if name in env else list(map(str, range(count)))


def _warn_of_none(env, name, visible, present, form=""):
    """A list of Problems: the list in variable `name` leaves no GPU, and is not one that is to leave none."""
    if visible or env.get(name, "") in NO_GPU:
        return []
    fault = f"{name}={env[name]} matches none of the {len(present)} GPUs here, so no GPU is visible"
    return [Problem(fault, f"correct or unset {name}{form}")]

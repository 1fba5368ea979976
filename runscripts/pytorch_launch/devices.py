# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the GPU of a rank among those that the environment leaves visible.

What Slurm or the user has limited stays limited. The variables that do so:

ROCR_VISIBLE_DEVICES                        AMD: the GPUs that the runtime finds at all
HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   AMD: numbers among those; HIP reads the second if the first is not set
CUDA_VISIBLE_DEVICES                        NVIDIA: numbers of GPUs, or their UUIDs

(ROCm, "GPU isolation techniques"; CUDA Programming Guide, "CUDA Environment Variables".)
"""

from pytorch_launch import Problem, Record, is_number, read

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"
PCI_ORDER = "PCI_BUS_ID"

#: The variables that hide GPUs of a vendor.
LIMITS = {"amd": (ROCR, HIP, CUDA), "nvidia": (CUDA,)}

# Entries that end a list on purpose; the last is that of older Slurm, for a job without GPUs.
NO_GPU = ("", "-1", "NoDevFiles")

# Beginning of the name of an instance of a GPU. CUDA finds the first in a list alone (MIG User Guide, "CUDA Device
# Enumeration"): each rank gets its own.
MIG = "MIG-"


class Devices(Record):
    """The GPUs of one rank.

    `vendor`    "amd" or "nvidia", None without GPUs
    `count`     number of GPUs that this rank sees, counted as torch's device_count() does, MIG's instances alike
    `index`     the one that it uses, below `count`; None without GPUs
    `held`      the physical GPUs that no other rank uses, or else the one at `index`; empty if they are not known
    `claims`    the physical GPUs of all ranks of this node, a shared one once for each rank; None if not known
    `own`       the positions there of this rank's
    `changes`   variables to set, name to value
    `warnings`  Problems
    `lists`     variables that decide which GPUs are visible, name to the entries, one for each GPU
    """

    fields = "vendor count index held claims own changes warnings lists"
    defaults = {"vendor": None, "count": 0, "index": None, "held": (), "claims": None, "own": ()}  # noqa: RUF012

    @property
    def gpu(self):
        """The physical GPU that this rank uses, None if not known."""
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees only the GPU at `index`, as its device 0."""
        if self.count < 2:
            return {}
        return {name: entries[self.index] for name, entries in self.lists.items()}


NO_DEVICES = Devices(changes={}, warnings=[], lists={})


class Visible(Record):
    """What a process sees of the GPUs of its node.

    `present`   all that there are, in the order in which their runtime counts them
    `gpus`      those that it sees, in the order of its devices, None for one that is not known
    `lists`, `changes` and `warnings` are as in Devices.
    """

    fields = "present gpus lists changes warnings"


class Selection(Record):
    """The GPUs of a list, its entries for them, and Problems."""

    fields = "gpus entries warnings"


def choose_devices(env, node, world):
    """The Devices of the rank of `world` on `node`, a Node."""
    if not node.gpus:
        return NO_DEVICES
    visible = visible_gpus(env, node, world.node_gpus)
    gpus = visible.gpus
    devices = Devices(
        vendor=node.gpus[0].vendor,
        count=len(gpus),
        changes=visible.changes,
        warnings=visible.warnings,
        lists=visible.lists,
    )
    if not gpus:
        return devices
    if world.local_size == 1:
        devices = devices._replace(index=0, held=gpus, claims=gpus)
    elif _has_own_gpus(env, node, world, devices):
        devices = devices._replace(index=0, held=gpus, claims=_claims(node, world, visible))
    else:
        devices = _take_turn(devices, gpus, world)
    if None in gpus:
        return _take_instance(devices._replace(held=(), claims=None, own=()), world)
    if devices.claims is not None and not devices.own:
        devices = devices._replace(own=[devices.claims.index(gpu) for gpu in gpus])
    return devices


def _take_instance(devices, world):
    """The Devices of one of several ranks with the instance of MIG at `index` alone; others are unchanged."""
    if world.local_size == 1 or not devices.lists[CUDA][0].startswith(MIG):
        return devices
    own = devices.narrowed()
    return devices._replace(count=1, index=0, lists={}, changes={**devices.changes, **own})


def _has_own_gpus(env, node, world, devices):
    """Whether no other rank of this node sees the GPUs that this rank sees."""
    count = devices.count
    if world.node_gpus is None:
        return count == 1 and _is_of_rank(env, node, world, LIMITS[devices.vendor])
    if count * world.local_size > world.node_gpus:
        return False
    # those that Slurm gave to torchrun are shared by its workers
    return count == 1 or (len(world.step_gpus or ()) == count and not world.exported)


def _is_of_rank(env, node, world, names):
    """Whether one of the variables `names` lists a single GPU, for this rank alone.

    So it is after a wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, unless mpirun or torchrun's agent had this value
    before it started the ranks.
    """
    launcher = node.parent if world.exported else node.launcher
    inherited = (read(f"{node.root}/proc/{launcher}/environ") or "").split("\0")
    for name in names:
        if name in env and "," not in env[name]:
            return f"{name}={env[name]}" not in inherited
    return False


def _take_turn(devices, gpus, world):
    """The Devices of a rank that sees the same `gpus` as the other ranks of its node."""
    count, ranks = len(gpus), world.local_size
    index = world.local_rank % count
    held = [gpus[index]]
    warnings = list(devices.warnings)
    if count < ranks <= (world.node_gpus or 0):  # as with --gpu-bind=closest where a NUMA node has several GPUs
        fault = f"each of {ranks} ranks on this node sees {count} of the step's {world.node_gpus} GPUs, and Slurm does "
        fault += "not report which ranks see the same ones"
        warnings.append(Problem(fault, "use srun --gpu-bind=none or --gpus-per-task=1"))
        return devices._replace(index=index, held=held, warnings=warnings)
    if ranks > count:
        fault = f"{ranks} ranks on this node share {count} of its GPUs, and NCCL fails with two on one"
        warnings.append(Problem(fault, f"start at most {count} per node, or request more GPUs"))
    claims = [gpus[rank % count] for rank in range(ranks)]
    return devices._replace(index=index, held=held, claims=claims, own=[world.local_rank], warnings=warnings)


def _claims(node, world, visible):
    """The GPUs that all ranks of the node may use, if each has as many for itself; None if not known."""
    total = world.node_gpus or len(visible.gpus) * world.local_size
    numbers = world.step_gpus or ()
    claims = node.all_gpus
    if len(visible.present) == total:
        claims = visible.present
    if len(numbers) == total and max(numbers) < len(visible.present):
        claims = [visible.present[number] for number in numbers]
    if len(claims) == total and all(gpu in claims for gpu in visible.gpus):
        return claims
    return None


def visible_gpus(env, node, node_gpus=None):
    """The Visible GPUs of a process on a Node that has some; `node_gpus` is how many of them are the step's."""
    if node.gpus[0].vendor == "amd":
        return _see_amd(env, node.gpus)
    return _see_nvidia(env, node.gpus, node_gpus)


def _see_amd(env, present):
    left = select(ROCR, env.get(ROCR, _count(present)), present)
    names = [name for name in (HIP, CUDA) if name in env]
    if not names or not left.gpus:
        return Visible(present, left.gpus, {ROCR: left.entries}, {}, left.warnings)
    exported = value = env[names[0]]
    if ROCR in env:
        value = _renumber(exported, left.entries)
    selection = select(names[0], value, left.gpus)
    warnings = left.warnings + selection.warnings
    if value != exported:
        fault = f"{ROCR}={env[ROCR]} leaves {len(left.gpus)} of {len(present)} GPUs, counted from 0, so "
        fault += f"{names[0]}={exported} is set to {value}"
        warnings.append(Problem(fault, "unset it where both are set"))
    changes = {name: value for name in names if env[name] != value}
    return Visible(present, selection.gpus, dict.fromkeys(names, selection.entries), changes, warnings)


def _renumber(value, rocr):
    """The list `value` for HIP, in numbers below len(rocr): those after `rocr`, the entries that ROCR left.

    Slurm's generic GRES sets ROCR_VISIBLE_DEVICES=3 and CUDA_VISIBLE_DEVICES=3, which is the fourth of
    one GPU, so none (Parsl/parsl#3858). A list that is valid, or that is empty, is returned unchanged.
    """
    entries = split(value)
    numbers = [int(entry) for entry in entries if is_number(entry)]
    if len(numbers) < len(entries) or max(numbers) < len(rocr):
        return value
    if set(entries) <= set(rocr):
        return ",".join(str(rocr.index(entry)) for entry in entries)
    return _count(rocr)


def _see_nvidia(env, present, node_gpus):
    order = env.get(CUDA_ORDER)
    # the default is the fastest first; Slurm counts in the order of PCI addresses (gres.html, "GPU Management")
    changes = {} if order else {CUDA_ORDER: PCI_ORDER}
    # without a list and a cgroup CUDA sees those of other jobs too
    value = env.get(CUDA, _count(present[: node_gpus or None]))
    if value.startswith(MIG):
        instances = [entry for entry in split(value) if entry]
        return Visible(present, [None] * len(instances), {CUDA: instances}, changes, [])
    selection = select(CUDA, value, present)
    gpus = selection.gpus
    if order not in (None, "", PCI_ORDER) and not value.startswith("GPU-"):
        gpus = [None] * len(gpus)
    return Visible(present, gpus, {CUDA: selection.entries}, changes, selection.warnings)


def select(name, value, present):
    """The Selection of a list of numbers and UUIDs: the GPUs up to the first entry that is invalid or repeated.

    ROCr (amd_filter_device.h), HIP (rocdevice.cpp) and CUDA read it in this way; UUIDs may be abbreviated. With a
    repeated GPU CUDA finds none (torch.cuda, _parse_visible_devices).
    """
    chosen = []
    entries = split(value)
    for entry in entries:
        matches = _match(entry, present)
        reason = None
        if len(matches) != 1:
            reason = f"matches none of the {len(present)} GPUs here"
        elif matches[0] in chosen:
            reason = "repeats a GPU of the list"
            if matches[0].vendor == "nvidia":
                chosen = []
        if reason:
            fault = f"{name}={value}: entry {entry} {reason}, so this rank sees {len(chosen)} of them"
            warnings = [] if entry in NO_GPU else [Problem(fault, f"correct or unset {name}")]
            return Selection(chosen, entries[: len(chosen)], warnings)
        chosen += matches
    return Selection(chosen, entries, [])


def _match(entry, present):
    """The GPUs that an entry of a list names."""
    if is_number(entry):
        return present[int(entry) : int(entry) + 1]
    if entry.startswith("GPU-"):
        return [gpu for gpu in present if (gpu.uuid or "").lower().startswith(entry.lower())]
    return []


def split(value):
    return [entry.strip() for entry in value.split(",")]


def _count(gpus):
    """The list of all `gpus`."""
    return ",".join(str(number) for number in range(len(gpus)))

# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the GPU of a rank among those that the environment leaves visible.

What Slurm or the user has limited stays limited. The variables that do so:

ROCR_VISIBLE_DEVICES                        AMD: the GPUs that the runtime finds at all
HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   AMD: numbers among those; HIP reads the second if the first is not set
CUDA_VISIBLE_DEVICES                        NVIDIA: numbers of GPUs, or their UUIDs

(ROCm, "GPU isolation techniques"; CUDA Programming Guide, "CUDA Environment Variables".)
"""

from collections import namedtuple

from pytorch_launch import Problem, is_number, read

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


class Devices(namedtuple("Devices", "vendor count index held claims own changes warnings lists")):
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

    __slots__ = ()

    @property
    def gpu(self):
        """The physical GPU that this rank uses, None if not known."""
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees only the GPU at `index`, as its device 0."""
        if self.count < 2:
            return {}
        return {name: entries[self.index] for name, entries in self.lists.items()}


NO_DEVICES = Devices(None, 0, None, (), None, (), {}, [], {})


class Visible(namedtuple("Visible", "present gpus lists changes warnings")):
    """What a process sees of the GPUs of its node.

    `present`   all that there are, in the order in which their runtime counts them
    `gpus`      those that it sees, in the order of its devices, None for one that is not known
    `lists`, `changes` and `warnings` are as in Devices.
    """

    __slots__ = ()


class Selection(namedtuple("Selection", "gpus entry is_repeated")):
    """The GPUs of a list; the `entry` at which it ends early, or None; whether the GPU of this is there already."""

    __slots__ = ()


def choose_devices(env, node, world):
    """The Devices of the rank of `world` on `node`, a Node."""
    if not node.gpus:
        return NO_DEVICES
    visible = visible_gpus(env, node, world.node_gpus)
    devices = NO_DEVICES._replace(
        vendor=node.gpus[0].vendor,
        count=len(visible.gpus),
        changes=visible.changes,
        warnings=visible.warnings,
        lists=visible.lists,
    )
    if devices.count == 0:
        return devices
    if world.local_size == 1:
        devices = devices._replace(index=0, held=visible.gpus, claims=visible.gpus)
    elif _has_own_gpus(env, node, world, devices):
        devices = devices._replace(index=0, held=visible.gpus, claims=_claims(node, world, visible))
    else:
        return _take_turn(devices, world, visible)
    if devices.claims is not None:
        devices = devices._replace(own=[devices.claims.index(gpu) for gpu in devices.held])
    return _finish(devices, world)


def _has_own_gpus(env, node, world, devices):
    """Whether no other rank of this node sees the GPUs that this rank sees.

    A rank that sees a single GPU by a variable, as after a wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, is taken
    to have it for itself, unless the launcher had this variable already, so all of its ranks have it.
    """
    count = devices.count
    if world.node_gpus is not None:
        if count * world.local_size > world.node_gpus:
            return False
        # those that Slurm gave to torchrun are shared by its workers
        return count == 1 or (len(world.step_gpus or ()) == count and not world.exported)
    for name in LIMITS[devices.vendor]:
        if count == 1 and name in env and "," not in env[name]:
            return not _is_of_launcher(env, node, world, name)
    return False


def _is_of_launcher(env, node, world, name):
    """Whether mpirun, or torchrun's agent, had this value of the variable `name` before it started the ranks."""
    launcher = node.parent if world.exported else node.launcher
    variables = read(f"{node.root}/proc/{launcher}/environ") or ""
    return f"{name}={env[name]}" in variables.split("\0")


def _take_turn(devices, world, visible):
    """The Devices of a rank that sees the same GPUs as the other ranks of its node."""
    count, ranks = devices.count, world.local_size
    index = world.local_rank % count
    devices = devices._replace(index=index, held=[visible.gpus[index]])
    if count < ranks <= (world.node_gpus or 0):  # as with --gpu-bind=closest where a NUMA node has several GPUs
        fault = f"each of {ranks} ranks on this node sees {count} of the step's {world.node_gpus} GPUs, and Slurm does "
        fault += "not report which ranks see the same ones"
        problem = Problem(fault, "use srun --gpu-bind=none or --gpus-per-task=1")
        return _finish(devices._replace(warnings=[*devices.warnings, problem]), world)
    claims = [visible.gpus[rank % count] for rank in range(ranks)]
    devices = devices._replace(claims=claims, own=[world.local_rank])
    if ranks > count:
        fault = f"{ranks} ranks on this node share {count_gpus(count)}, and NCCL fails with two on one"
        problem = Problem(fault, f"start at most {count} per node, or request more GPUs")
        devices = devices._replace(warnings=[*devices.warnings, problem])
    return _finish(devices, world)


def _finish(devices, world):
    """The Devices without what is not known, and with one instance of MIG for each of several ranks."""
    if None in devices.held or None in (devices.claims or ()):
        devices = devices._replace(held=(), claims=None, own=())
    is_instance = any(entry.startswith(MIG) for entry in devices.lists.get(CUDA, ()))
    if is_instance and world.local_size > 1:  # a process sees one instance
        own = devices.narrowed()
        return devices._replace(count=1, index=0, lists={}, changes={**devices.changes, **own})
    return devices


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
    selection = Selection(present, None, is_repeated=False)
    entries = _count(present)
    if ROCR in env:
        selection = select(env[ROCR], present)
        entries = split(env[ROCR])[: len(selection.gpus)]
    left = selection.gpus
    warnings = _explain(ROCR, env.get(ROCR), selection, present)
    names = [name for name in (HIP, CUDA) if name in env]
    if not names or not left:
        return Visible(present, left, {ROCR: entries}, {}, warnings)
    value = env[names[0]]
    if ROCR in env:
        value = _renumber(value, entries)
    if value != env[names[0]]:
        fault = f"{ROCR}={env[ROCR]} leaves {count_gpus(len(left))}, counted from 0, so {names[0]}={env[names[0]]} is "
        warnings.append(Problem(f"{fault}set to {value}", "unset it where both are set"))
    selection = select(value, left)
    warnings += _explain(names[0], value, selection, left)
    lists = dict.fromkeys(names, split(value))
    changes = {name: value for name in names if env[name] != value}
    return Visible(present, selection.gpus, lists, changes, warnings)


def _renumber(value, rocr):
    """The list `value` for HIP, in numbers below len(rocr): those after `rocr`, the entries that ROCR left.

    Slurm's generic GRES sets ROCR_VISIBLE_DEVICES=3 and CUDA_VISIBLE_DEVICES=3, which is the fourth of
    one GPU, so none (Parsl/parsl#3858). A list that is valid, or that is empty, is returned unchanged.
    """
    entries = split(value)
    if not all(map(is_number, entries)) or all(int(entry) < len(rocr) for entry in entries):
        return value
    if all(entry in rocr for entry in entries):
        return ",".join(str(rocr.index(entry)) for entry in entries)
    return ",".join(_count(rocr))


def _see_nvidia(env, present, node_gpus):
    order = env.get(CUDA_ORDER)
    # the default is the fastest first; Slurm counts in the order of PCI addresses (gres.html, "GPU Management")
    changes = {} if order else {CUDA_ORDER: PCI_ORDER}
    if CUDA not in env:
        found = present[: node_gpus or None]  # without a list and a cgroup CUDA sees those of other jobs too
        visible = Visible(present, found, {CUDA: _count(found)}, changes, [])
    elif env[CUDA].startswith(MIG):
        instances = [entry for entry in split(env[CUDA]) if entry]
        return Visible(present, [None] * len(instances), {CUDA: instances}, changes, [])
    else:
        selection = select(env[CUDA], present)
        if selection.is_repeated:  # CUDA finds none then (torch.cuda, _parse_visible_devices)
            selection = selection._replace(gpus=[])
        lists = {CUDA: split(env[CUDA])[: len(selection.gpus)]}
        warnings = _explain(CUDA, env[CUDA], selection, present)
        visible = Visible(present, selection.gpus, lists, changes, warnings)
    if order not in (None, "", PCI_ORDER) and not env.get(CUDA, "").startswith("GPU-"):
        return visible._replace(gpus=[None] * len(visible.gpus))
    return visible


def select(value, present):
    """The Selection of a list of numbers and UUIDs: the GPUs up to the first entry that is invalid or repeated.

    ROCr (amd_filter_device.h), HIP (rocdevice.cpp) and CUDA read it in this way; UUIDs may be abbreviated.
    """
    chosen = []
    for entry in split(value):
        matches = []
        if is_number(entry):
            matches = present[int(entry) : int(entry) + 1]
        elif entry.startswith("GPU-"):
            matches = [gpu for gpu in present if (gpu.uuid or "").lower().startswith(entry.lower())]
        if len(matches) != 1 or matches[0] in chosen:
            return Selection(chosen, entry, is_repeated=len(matches) == 1)
        chosen += matches
    return Selection(chosen, None, is_repeated=False)


def _explain(name, value, selection, present):
    """Problems, one or none: the list `value` of the variable `name` ends early, and not on purpose."""
    entry = selection.entry
    if entry is None or entry in NO_GPU:
        return []
    reason = f"matches none of the {len(present)} GPUs here"
    if selection.is_repeated:
        reason = "repeats a GPU of the list"
    visible = "no GPU is visible"
    if selection.gpus:
        visible = f"only {count_gpus(len(selection.gpus))} before it can be used"
    return [Problem(f"{name}={value}: entry {entry} {reason}, so {visible}", f"correct or unset {name}")]


def split(value):
    return [entry.strip() for entry in value.split(",")]


def _count(gpus):
    """The numbers of GPUs as entries of a list."""
    return [str(number) for number in range(len(gpus))]


def count_gpus(count):
    return "1 GPU" if count == 1 else f"{count} GPUs"

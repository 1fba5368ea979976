"""Which GPU a rank uses among those that it may see; called by `rank`.

What Slurm or the user has limited stays limited. The variables that do so:

ROCR_VISIBLE_DEVICES                        AMD: the GPUs that the runtime finds at all
HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES   AMD: numbers among those; HIP reads the second without the first
CUDA_VISIBLE_DEVICES                        NVIDIA: numbers of GPUs, or their UUIDs

(ROCm, "GPU isolation techniques"; CUDA Programming Guide, "CUDA Environment Variables".)
"""

from pytorch_launch import is_number
from pytorch_launch.topology import all_gpus, gpus

ROCR = "ROCR_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"

# What says that no GPU is wanted; the last is older Slurm's, for a job that has none.
NONE_WANTED = ("", "-1", "NoDevFiles")


class Devices:
    """The GPUs of one rank.

    `vendor`    "amd" or "nvidia", None without GPUs
    `count`     number of GPUs that this rank sees, counted as torch.cuda.device_count() does
    `index`     the one that it uses, below `count`; None without GPUs
    `held`      the physical GPUs that no other rank uses, or else the one at `index`; empty where
                nothing tells which they are
    `in_play`   the physical GPUs that the ranks of this node may use, with those of `held` among them,
                None if not known
    `sharers`   number of ranks of this node that use the GPU at `index`
    `turn`      place of this rank among them, from 0
    `changes`   variables to set, name to value
    `warnings`  sentences for people
    `lists`     variables that decide which GPUs are visible, name to the entries, one for each GPU
    `local_rank_is_index`  false where a program that takes cuda:LOCAL_RANK would look for a GPU in vain
    """

    def __init__(self, vendor=None, count=0):
        self.vendor = vendor
        self.count = count
        self.index = None
        self.held = []
        self.in_play = None
        self.sharers = 1
        self.turn = 0
        self.changes = {}
        self.warnings = []
        self.local_rank_is_index = True
        self.lists = {}

    @property
    def gpu(self):
        """The physical GPU that this rank uses, None where nothing tells which it is."""
        return self.held[0] if self.held else None

    def narrowed(self):
        """Variables with which this rank sees the GPU at `index` alone, as its device 0."""
        if self.count < 2:
            return {}
        return {name: entries[self.index] for name, entries in self.lists.items()}


def choose(env, root, local_rank, local_size):
    """The Devices of rank `local_rank` of the `local_size` on this node."""
    present = gpus(root)
    if not present:
        return Devices()
    vendor = present[0].vendor
    see = _see_amd if vendor == "amd" else _see_nvidia
    visible, lists, changes, warnings = see(env, present)
    devices = Devices(vendor, len(visible))
    devices.lists, devices.changes, devices.warnings = lists, changes, warnings
    if not visible:
        return devices

    devices.local_rank_is_index = local_rank < devices.count
    step = _Step(env)
    limited = any(name in env for name in ((ROCR, HIP, CUDA) if vendor == "amd" else (CUDA,)))
    if local_size == 1 or step.gives_each_its_own(devices.count, local_size, limited):
        devices.index = 0
        if None not in visible:
            devices.held = visible
            devices.in_play = visible if local_size == 1 else _in_play(root, step, visible, present, local_size)
    else:
        _share(devices, visible, step, local_rank, local_size)
    return devices


def _share(devices, visible, step, local_rank, local_size):
    """Complete `devices` where other ranks of the node see the GPUs in `visible` too."""
    count = devices.count
    devices.index = local_rank % count
    if visible[devices.index] is not None:
        devices.held = [visible[devices.index]]
    if count < local_size <= (step.count or 0):
        # as with --gpu-bind=closest where a NUMA node has several GPUs
        devices.warnings.append(
            f"each of {local_size} ranks on this node sees {count} of the step's {step.count} GPUs, and nothing tells "
            "which ranks see the same ones: take srun --gpu-bind=none or --gpus-per-task=1"
        )
        return
    devices.sharers = len(range(devices.index, local_size, count))
    devices.turn = local_rank // count
    if None not in visible:
        devices.in_play = visible[:local_size]
    if local_size > count:
        devices.warnings.append(
            f"{local_size} ranks on this node share {count} GPU{'s' * (count > 1)}, and NCCL refuses two ranks on "
            f"one: start at most {count} per node, or ask for more GPUs"
        )


class _Step:
    """What Slurm says of the GPUs of this task on this node.

    `gpus`   their numbers on the node, whatever a device cgroup hides; None if not said. A task that
             --gpus-per-task or --gpu-bind gives less than the step has finds only its own here.
    `count`  number of GPUs of all tasks of the step here, None if not said

    (srun(1), "OUTPUT ENVIRONMENT VARIABLES"; gres_common.c; seen with 22.05.) Of the options themselves
    srun tells its tasks nothing.
    """

    def __init__(self, env):
        numbers = env.get("SLURM_STEP_GPUS")
        if numbers is None and not env.get("SLURM_STEP_ID"):
            # of the batch script's node alone, though all steps inherit it
            numbers = env.get("SLURM_JOB_GPUS")
        entries = (numbers or "").split(",")
        self.gpus = [int(entry) for entry in entries] if all(map(is_number, entries)) else None
        count = env.get("SLURM_GPUS_ON_NODE", "")
        self.count = int(count) if is_number(count) else None
        # what Slurm gives to torchrun, its workers have together
        self.is_torchruns = bool(env.get("TORCHELASTIC_RUN_ID"))

    def gives_each_its_own(self, count, local_size, limited):
        """Whether the `count` GPUs that this rank sees are seen by no other of the `local_size`.

        `limited` is true if variables hide GPUs from this rank: one that sees a single GPU, as after a
        wrapper with ROCR_VISIBLE_DEVICES=$SLURM_LOCALID, is taken to have it for itself.
        """
        if self.count is not None and count * local_size > self.count:
            return False
        if count == 1:
            return limited or self.count is not None
        return self.count is not None and self.gpus is not None and len(self.gpus) == count and not self.is_torchruns


def _in_play(root, step, held, present, local_size):
    """The GPUs that all ranks of the node may use, if each has as many for itself as `held`; None if not known."""
    total = step.count or len(held) * local_size
    if step.gpus is not None and len(step.gpus) == total and max(step.gpus) < len(present):
        candidates = [present[number] for number in step.gpus]
    elif len(present) == total:
        candidates = present
    else:
        candidates = all_gpus(root, held[0].vendor)
    own = {gpu.pci: gpu for gpu in held}
    in_play = [own.get(gpu.pci, gpu) for gpu in candidates]
    return in_play if len(in_play) == total and all(gpu in in_play for gpu in held) else None


def _see_amd(env, present):
    """The AMD GPUs in the order of a rank's devices, and what `_see_nvidia` returns with them."""
    left = present if ROCR not in env else _listed(env[ROCR], present)
    lists = {ROCR: _entries(env, ROCR, len(left))}
    changes, warnings = {}, []
    if not left and env[ROCR] not in NONE_WANTED:
        warnings.append(_no_such(ROCR, env[ROCR], present))
    names = [name for name in (HIP, CUDA) if name in env]
    if not names or not left:
        return left, lists, changes, warnings

    value = env[names[0]]
    if ROCR in env:
        value = _numbers_after_rocr(value, lists[ROCR])
        if value != env[names[0]]:
            warnings.append(
                f"{ROCR}={env[ROCR]} leaves {len(left)} GPU{'s' * (len(left) > 1)}, counted from 0, so "
                f"{names[0]}={env[names[0]]} is set to {value}: unset it where both are set"
            )
    visible = _listed(value, left)
    if not visible and value not in NONE_WANTED:
        warnings.append(_no_such(names[0], value, left))
    if len(names) == 2 and env[HIP] != env[CUDA]:
        warnings.append(f"{HIP}={env[HIP]}, which counts, and {CUDA}={env[CUDA]} differ: unset one of them")
    for name in names:
        if env[name] != value:
            changes[name] = value
    return visible, {name: value.split(",") for name in names}, changes, warnings


def _numbers_after_rocr(value, rocr):
    """The list `value` for HIP, in numbers below len(rocr): those after `rocr`, the entries that ROCR left.

    Slurm's generic GRES sets ROCR_VISIBLE_DEVICES=3 and CUDA_VISIBLE_DEVICES=3, which is the fourth of
    one GPU, so none (Parsl/parsl#3858). A list that fits, or that wants no GPU, is returned as it is.
    """
    entries = [entry.strip() for entry in value.split(",")]
    if not all(is_number(entry) for entry in entries) or all(int(entry) < len(rocr) for entry in entries):
        return value
    named = all(entry in rocr for entry in entries)
    return ",".join(str(number) for number in (map(rocr.index, entries) if named else range(len(rocr))))


def _see_nvidia(env, present):
    """The NVIDIA GPUs in the order of a rank's devices, None for one of which nothing tells which it is.

    With them, for `Devices`: the entries of each list that decides what is visible, changes, warnings.
    """
    changes, warnings = {}, []
    if not env.get(CUDA_ORDER):
        # the default is the fastest first; Slurm counts as this does (gres.html, "GPU Management")
        changes[CUDA_ORDER] = "PCI_BUS_ID"
    value = env.get(CUDA)
    if value is not None and value.startswith("MIG-"):
        visible = [None]  # CUDA finds one instance at most (MIG User Guide, "CUDA Device Enumeration")
    elif value is not None and value.startswith("GPU-"):
        visible = _listed(value, present)
    else:
        visible = _numbered(env, value, present)
    if value is not None and value not in NONE_WANTED and not visible:
        warnings.append(_no_such(CUDA, value, present))
    return visible, {CUDA: _entries(env, CUDA, len(visible))}, changes, warnings


def _numbered(env, value, present):
    """The GPUs of a list of numbers, all without one, None for each where nothing tells which they are."""
    step = _Step(env)
    total = len(present)
    if value is None:
        listed = list(range(min(step.count or total, total) if step.gpus is None else len(step.gpus)))
        # otherwise a device cgroup may hide the others, or nothing may
        known = listed == step.gpus or len(listed) == total
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
    """The numbers on the node, of `total` GPUs, of those `listed`; None if they may be one of two things.

    In a device cgroup CUDA counts the GPUs of the step from 0, without one those of the node, and the
    environment does not tell which it is.
    """
    if step.gpus is None:
        return listed if step.count is None or step.count >= total else None
    if _may_be_slurms(listed, step.gpus):
        return step.gpus
    in_cgroup = [step.gpus[number] for number in listed] if max(listed, default=0) < len(step.gpus) else None
    without = listed if all(number in step.gpus for number in listed) else None
    if in_cgroup is None or in_cgroup == without:
        return without
    return in_cgroup if without is None else None


def _may_be_slurms(listed, numbers):
    """Whether Slurm has written `listed` beside the `numbers` on the node: both ascend, in the same order."""
    return (
        len(listed) == len(numbers)
        and listed == sorted(listed)
        and all(local <= number for local, number in zip(listed, numbers))
    )


def _listed(value, present):
    """The GPUs of a list of numbers and UUIDs, up to the first entry that is none or is there already.

    So read it ROCr (amd_filter_device.h), HIP (rocdevice.cpp), and CUDA; UUIDs may be abbreviated.
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
    """The first `count` entries of the list in variable `name`, or their numbers where it is not set."""
    if name not in env:
        return [str(number) for number in range(count)]
    return [entry.strip() for entry in env[name].split(",")][:count]


def _no_such(name, value, present):
    return f"{name}={value} names none of the {len(present)} GPUs here, so there are none: correct or unset it"

"""Checks the GPUs that the module is for, and their driver."""

import re

from pytorch_launch.topology import gpus

from pytorch_doctor import fail, not_applicable, ok, warn

VENDORS = {"cuda": "nvidia", "rocm": "amd"}
LABELS = {"cuda": "NVIDIA", "rocm": "AMD"}
#: The oldest driver for each CUDA, by its first number: NVIDIA, "CUDA Compatibility", minor version compatibility
#: (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}


def check_gpu(here):
    """Whether there are GPUs of the module's kind, and torch sees them."""
    kind = here.gpu if here.module else None
    if kind is None:
        return not_applicable("gpu", "the module is for CPUs" if here.module else "no module is loaded")
    present = gpus(here.root)
    if not present:
        if not here.trains_here:
            return not_applicable("gpu", "no GPU, which login nodes may lack: srun pytorch-doctor")
        return fail(
            "gpu",
            f"the module is for {LABELS[kind]} GPUs, but there are none here",
            "request GPUs (srun --gpus-per-node=1) in a partition that has some, or load a module for CPUs",
        )
    if present[0].vendor != VENDORS[kind]:
        other = {"amd": "AMD", "nvidia": "NVIDIA"}[present[0].vendor]
        finding = f"the module is for {LABELS[kind]} GPUs, but those here are from {other}"
        return fail("gpu", finding, "load another module, or use another partition")
    facts, _ = here.torch
    if facts is None:
        return fail("gpu", f"torch cannot be imported to check the {len(present)} GPUs here", "see the check `torch`")
    if not facts["devices"]:
        return fail("gpu", f"torch sees none of the {len(present)} GPUs here", _unseen(here, kind))
    seen = "{} of {}: {}".format(len(facts["devices"]), len(present), facts["devices"][0])
    if len(facts["devices"]) < len(present) and not any(name.endswith("_VISIBLE_DEVICES") for name in here.env):
        return warn("gpu", seen + ", and no variable *_VISIBLE_DEVICES hides the others", _unseen(here, kind))
    return ok("gpu", seen)


def check_driver(here):
    """Whether the driver supports the CUDA or ROCm of torch: it computes, or the versions explain why not."""
    kind = here.gpu if here.module else None
    if kind is None:
        return not_applicable("driver", "the module is for CPUs" if here.module else "no module is loaded")
    version = driver_version(here, kind)
    if version is None:
        return not_applicable("driver", f"no driver of {LABELS[kind]} here")
    facts, _ = here.torch
    if facts is None:
        return fail("driver", f"{version}, but torch cannot be imported", "see the check `torch`")
    needed = facts["cuda"] if kind == "cuda" else facts["hip"]
    name = "{} {}".format("CUDA" if kind == "cuda" else "ROCm", needed)
    if facts["devices"] and not facts["fault"]:
        return ok("driver", f"{version}, computes with {name}")
    oldest = OLDEST_DRIVERS.get(int(needed.split(".")[0])) if kind == "cuda" else None
    if oldest and int(version.split(".")[0]) < oldest:
        return fail(
            "driver",
            f"driver {version} is too old for {name}, which needs {oldest} or newer",
            "load a module for an older CUDA, or ask the site to update the driver",
        )
    if facts["fault"]:
        return fail(
            "driver",
            "driver {}: {} does not compute: {}".format(version, name, facts["fault"]),
            "try another node; if all nodes fail, load a module that is built for this driver",
        )
    return ok("driver", f"{version}; no visible GPU")


def driver_version(here, kind):
    """The version of the kernel's driver, None without one."""
    if kind == "rocm":
        own = "of the kernel" if here.names("/sys/module/amdgpu") else None
        return here.read("/sys/module/amdgpu/version") or own
    text = here.read("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module\s.*?(\d{3,}(?:\.\d+)+)", text)
    return found.group(1) if found else None


def _unseen(here, kind):
    """The remedy for GPUs that torch does not see."""
    names = ("CUDA_VISIBLE_DEVICES",) if kind == "cuda" else ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    values = [f"{name}={here.env[name]}" for name in names if name in here.env]
    if values:
        return "correct or unset " + ", ".join(values)
    if here.in_image and kind == "cuda":
        return "enter the image with --nv, as the module does with SINGULARITY_NV=1, and see the check `driver`"
    return "see the check `driver`, and your permission for {}".format("/dev/nvidia*" if kind == "cuda" else "/dev/kfd")

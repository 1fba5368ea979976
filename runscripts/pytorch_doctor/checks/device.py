# SPDX-License-Identifier: BSD-3-Clause
"""Checks the GPUs that the module is for, and their driver."""

import re

from pytorch_launch.topology import gpus
from pytorch_launch.visible import LIMITS, visible_gpus

from pytorch_doctor import FAIL, fail, not_applicable, ok, warn

VENDORS = {"cuda": "nvidia", "rocm": "amd", "xpu": "intel"}
LABELS = {"cuda": "NVIDIA", "rocm": "AMD", "xpu": "Intel"}
#: The fact about torch that has the version of its runtime.
VERSIONS = {"cuda": "cuda", "rocm": "hip", "xpu": "xpu"}
#: The files by which programs use the GPUs.
FILES = {"cuda": "/dev/nvidia*", "rocm": "/dev/kfd", "xpu": "/dev/dri/renderD*"}
#: The kernel's drivers, by their directories in /sys/module.
MODULES = {"rocm": ("amdgpu",), "xpu": ("xe", "i915")}
#: The oldest driver for each CUDA, by its first number: NVIDIA, "CUDA Compatibility", minor version compatibility
#: (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
RUNTIMES = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU"}
#: The versions of CUDA or ROCm that the site's driver supports, as a cluster profile has them: 6.1-7.0.
SUPPORTED = re.compile(r"([0-9]+(?:\.[0-9]+)*)-([0-9]+(?:\.[0-9]+)*)")


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
        other = {vendor: LABELS[kind] for kind, vendor in VENDORS.items()}[present[0].vendor]
        finding = f"the module is for {LABELS[kind]} GPUs, but those here are from {other}"
        return fail("gpu", finding, "load another module, or use another partition")
    facts, _ = here.torch
    if facts is None:
        return fail("gpu", f"torch cannot be imported to check the {len(present)} GPUs here", "see the check `torch`")
    if not facts["devices"]:
        return fail("gpu", f"torch sees none of the {len(present)} GPUs here", _unseen(here, kind))
    visible = visible_gpus(here.env, here.root)
    seen = "{} of {}: {}".format(len(facts["devices"]), len(visible.present), facts["devices"][0])
    if len(facts["devices"]) < len(visible.present) and not visible.is_limited:
        variables = " or ".join(("*_VISIBLE_DEVICES",) if kind != "xpu" else LIMITS["intel"])
        return warn("gpu", f"{seen}, and no variable {variables} hides the others", _unseen(here, kind))
    return ok("gpu", seen)


def check_driver(here):
    """Whether the driver supports the CUDA or ROCm of torch: it computes, or the versions explain why not."""
    kind = here.gpu if here.module else None
    if kind is None:
        return not_applicable("driver", "the module is for CPUs" if here.module else "no module is loaded")
    found = _check_driver_here(here, kind)
    unsupported = find_unsupported(here, kind)
    if not unsupported:
        return found
    verdict = fail if found.verdict == FAIL else warn
    remedy = f"load a module for a supported {RUNTIMES[kind]}: module avail PyTorch"
    return verdict("driver", f"{found.finding}; {unsupported}", remedy)


def find_unsupported(here, kind):
    """Return what is wrong if torch's CUDA or ROCm is outside the range in the cluster profile, otherwise None.

    Without a range, in PYTORCH_DRIVER_CUDA or PYTORCH_DRIVER_ROCM, torch is not imported.
    """
    variable = f"PYTORCH_DRIVER_{kind.upper()}"
    supported = SUPPORTED.fullmatch(here.env.get(variable, ""))
    facts, _ = here.torch if supported else (None, None)
    version = facts and facts[VERSIONS[kind]]
    if not version or is_within(version, *supported.groups()):
        return None
    oldest, newest = supported.groups()
    used = "{} {}".format(RUNTIMES[kind], ".".join(version.split(".")[:2]))
    return f"torch is built for {used}, and the site's driver supports {oldest} to {newest} ({variable})"


def is_within(version, oldest, newest):
    """Whether a version is in a range; 13.2 is within 11-13, and 7.0.2 within 6.1-7.0."""
    version, oldest, newest = (
        [int(number) for number in re.findall("[0-9]+", text)] for text in (version, oldest, newest)
    )
    return oldest <= version[: len(oldest)] and version[: len(newest)] <= newest


def _check_driver_here(here, kind):
    """The same for this node alone, without the range in the cluster profile."""
    version = driver_version(here, kind)
    if version is None:
        return not_applicable("driver", f"no driver of {LABELS[kind]} here")
    facts, _ = here.torch
    if facts is None:
        return fail("driver", f"{version}, but torch cannot be imported", "see the check `torch`")
    needed = facts[VERSIONS[kind]]
    name = f"{RUNTIMES[kind]} {needed}"
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
    if kind in MODULES:
        loaded = next((f"/sys/module/{name}" for name in MODULES[kind] if here.names(f"/sys/module/{name}")), None)
        return loaded and (here.read(f"{loaded}/version") or "of the kernel")
    text = here.read("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module\s.*?(\d{3,}(?:\.\d+)+)", text)
    return found.group(1) if found else None


def _unseen(here, kind):
    """The remedy for GPUs that torch does not see."""
    values = [f"{name}={here.env[name]}" for name in LIMITS[VENDORS[kind]] if name in here.env]
    if values:
        return "correct or unset " + ", ".join(values)
    if here.in_image and kind == "cuda":
        return "enter the image with --nv, as the module does with SINGULARITY_NV=1, and see the check `driver`"
    return f"see the check `driver`, and your permission for {FILES[kind]}"

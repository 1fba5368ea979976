# SPDX-License-Identifier: BSD-3-Clause
"""Checks the GPUs that the module is for, and their driver."""

import re
from collections import namedtuple

from pytorch_launch.devices import LIMITS, visible_gpus
from pytorch_launch.topology import Node

from pytorch_doctor import FAIL, fail, not_applicable, ok, warn

Kind = namedtuple("Kind", "vendor label version runtime files modules")
Kind.__doc__ = """A kind of GPU: the vendor and its name, the fact about torch with the version of its runtime, the
runtime's name, the files by which programs use the GPUs, and the drivers by their directories in /sys/module."""
KINDS = {
    "cuda": Kind("nvidia", "NVIDIA", "cuda", "CUDA", "/dev/nvidia*", ()),
    "rocm": Kind("amd", "AMD", "hip", "ROCm", "/dev/kfd", ("amdgpu",)),
    "xpu": Kind("intel", "Intel", "xpu", "XPU", "/dev/dri/renderD*", ("xe", "i915")),
}
NO_GPU = "no module for GPUs is loaded"
#: The versions of CUDA or ROCm that the site's driver supports, as a cluster profile has them: 6.1-7.0.
SUPPORTED = re.compile(r"([0-9]+(?:\.[0-9]+)*)-([0-9]+(?:\.[0-9]+)*)")


def check_gpu(here):
    """Whether there are GPUs of the module's kind, and torch sees them."""
    kind = KINDS.get(here.gpu) if here.module else None
    if kind is None:
        return not_applicable(NO_GPU)
    node = Node(here.root)
    present = node.gpus
    if not present and not here.trains_here:
        return not_applicable("no GPU, which login nodes may lack: srun pytorch-doctor")
    if not present:
        remedy = "request GPUs (srun --gpus-per-node=1) in a partition that has some, or load a module for CPUs"
        return fail(f"the module is for {kind.label} GPUs, but there are none here", remedy)
    if present[0].vendor != kind.vendor:
        other = next(other.label for other in KINDS.values() if other.vendor == present[0].vendor)
        finding = f"the module is for {kind.label} GPUs, but those here are from {other}"
        return fail(finding, "load another module, or use another partition")
    facts, _ = here.torch
    if facts is None:
        return fail(f"torch cannot be imported to check the {len(present)} GPUs here", "see the check `torch`")
    if not facts["devices"]:
        return fail(f"torch sees none of the {len(present)} GPUs here", _unseen(here, kind))
    count = len(visible_gpus(here.env, node)[0])
    seen = f"{len(facts['devices'])} of {count}: {facts['devices'][0]}"
    if len(facts["devices"]) < count and not any(name in here.env for name in LIMITS[kind.vendor]):
        variables = " or ".join(("*_VISIBLE_DEVICES",) if kind.vendor != "intel" else LIMITS["intel"])
        return warn(f"{seen}, and no variable {variables} hides the others", _unseen(here, kind))
    return ok(seen)


def _unseen(here, kind):
    values = [f"{name}={here.env[name]}" for name in LIMITS[kind.vendor] if name in here.env]
    if values:
        return "correct or unset " + ", ".join(values)
    if here.in_image and kind.vendor == "nvidia":
        return "enter the image with --nv, as the module does with SINGULARITY_NV=1, and see the check `driver`"
    return f"see the check `driver`, and your permission for {kind.files}"


def check_driver(here):
    """Whether torch computes with the driver, and the cluster profile lists torch's CUDA or ROCm as supported."""
    kind = KINDS.get(here.gpu) if here.module else None
    if kind is None:
        return not_applicable(NO_GPU)
    version, variable = _driver_version(here, kind), f"PYTORCH_DRIVER_{here.gpu.upper()}"
    supported = SUPPORTED.fullmatch(here.env.get(variable, ""))
    facts, _ = here.torch if version or supported else (None, None)  # without both, torch is not imported
    needed = facts and facts[kind.version]
    if version is None:
        found = not_applicable(f"no driver of {kind.label} here")
    elif facts is None:
        found = fail(f"{version}, but torch cannot be imported", "see the check `torch`")
    elif facts["fault"]:
        remedy = "try another node; if all nodes fail, load a module that is built for this driver"
        found = fail(f"driver {version}: {kind.runtime} {needed} does not compute: {facts['fault']}", remedy)
    else:
        computes = f"computes with {kind.runtime} {needed}" if facts["devices"] else "no visible GPU"
        found = ok(f"{version}, {computes}")
    if not supported or not needed or is_within(needed, *supported.groups()):
        return found
    finding = (
        f"{found.finding}; torch is built for {kind.runtime} {'.'.join(needed.split('.')[:2])}, and the site's driver "
        f"supports {' to '.join(supported.groups())} ({variable})"
    )
    remedy = f"load a module for a supported {kind.runtime}: module avail PyTorch"
    return (fail if found.verdict == FAIL else warn)(finding, remedy)


def is_within(version, oldest, newest):
    """Whether a version is in a range; 13.2 is within 11-13, and 7.0.2 within 6.1-7.0."""
    version, oldest, newest = ([int(part) for part in re.findall("[0-9]+", text)] for text in (version, oldest, newest))
    return oldest <= version[: len(oldest)] and version[: len(newest)] <= newest


def _driver_version(here, kind):
    for name in kind.modules:
        if here.names(f"/sys/module/{name}"):
            return here.read(f"/sys/module/{name}/version") or "of the kernel"
    text = here.read("/proc/driver/nvidia/version") if kind.vendor == "nvidia" else None
    found = re.search(r"Kernel Module\s.*?(\d{3,}(?:\.\d+)+)", text or "")
    return found.group(1) if found else None

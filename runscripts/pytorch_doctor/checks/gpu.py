# SPDX-License-Identifier: BSD-3-Clause
"""Checks the GPUs that the module is for, and their driver."""

import re
from collections import namedtuple

from pytorch_launch.devices import LIMITS, visible_gpus
from pytorch_launch.topology import Node

from pytorch_doctor import fail, not_applicable, ok, warn

Kind = namedtuple("Kind", "vendor label version runtime files modules")
Kind.__doc__ = """A kind of GPU: the vendor and its name, the fact about torch with the version of its runtime, the
runtime's name, the files by which programs use the GPUs, and the drivers by their directories in /sys/module."""
KINDS = {
    "cuda": Kind("nvidia", "NVIDIA", "cuda", "CUDA", "/dev/nvidia*", ()),
    "rocm": Kind("amd", "AMD", "hip", "ROCm", "/dev/kfd", ("amdgpu",)),
    "xpu": Kind("intel", "Intel", "xpu", "XPU", "/dev/dri/renderD*", ("xe", "i915")),
}
NO_GPU = "no module for GPUs is loaded"


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
    """Whether torch computes with the driver."""
    kind = KINDS.get(here.gpu) if here.module else None
    if kind is None:
        return not_applicable(NO_GPU)
    version = _driver_version(here, kind)
    if version is None:
        return not_applicable(f"no driver of {kind.label} here")
    facts, _ = here.torch
    if facts is None:
        return fail(f"{version}, but torch cannot be imported", "see the check `torch`")
    if facts["fault"]:
        remedy = "try another node; if all nodes fail, load a module that is built for this driver"
        fault = f"driver {version}: {kind.runtime} {facts[kind.version]} does not compute: {facts['fault']}"
        return fail(fault, remedy)
    computes = f"computes with {kind.runtime} {facts[kind.version]}" if facts["devices"] else "no visible GPU"
    return ok(f"{version}, {computes}")


def _driver_version(here, kind):
    for name in kind.modules:
        if here.names(f"/sys/module/{name}"):
            return here.read(f"/sys/module/{name}/version") or "of the kernel"
    text = here.read("/proc/driver/nvidia/version") if kind.vendor == "nvidia" else None
    found = re.search(r"Kernel Module\s.*?(\d{3,}(?:\.\d+)+)", text or "")
    return found.group(1) if found else None

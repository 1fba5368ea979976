# SPDX-License-Identifier: BSD-3-Clause
"""Checks the GPUs that the module is for, and whether torch computes on them."""

from collections import namedtuple

from pytorch_launch.devices import LIMITS, visible_gpus
from pytorch_launch.topology import read_node

from pytorch_doctor import fail, not_applicable, ok, warn

#: A kind of GPU: the vendor and its name, the fact about torch with the version of its runtime, and the
#: files by which programs use the GPUs.
Kind = namedtuple("Kind", "vendor label version files")
KINDS = {
    "cuda": Kind("nvidia", "NVIDIA", "cuda", "/dev/nvidia*"),
    "rocm": Kind("amd", "AMD", "hip", "/dev/kfd"),
}


def check_gpu(here):
    """Whether there are GPUs of the module's kind, torch sees them, and computes on each."""
    kind = KINDS.get(here.gpu)
    if kind is None:
        return not_applicable("no module for GPUs is loaded")
    node = read_node(here.root)
    if not node.gpus and not here.trains_here:
        return not_applicable("no GPU, which login nodes may lack: srun pytorch-doctor")
    if not node.gpus or node.gpus[0].vendor != kind.vendor:
        remedy = "request GPUs (srun --gpus-per-node=1) in a partition that has them, or load another module"
        return fail(f"the module is for {kind.label} GPUs, and there are none here", remedy)
    facts, _ = here.torch
    if facts is None:
        return fail(f"torch cannot be imported to check the {len(node.gpus)} GPUs here", "see the check `torch`")
    runtime = f"{kind.version} {facts[kind.version]}"
    if facts["fault"]:
        remedy = find_remedy(here, kind)
        if facts["devices"]:
            remedy = "try another node; if all nodes fail, load a module that is built for this driver"
        return fail(f"torch with {runtime} does not compute: {facts['fault']}", remedy)
    seen = f"{len(facts['devices'])} of {len(visible_gpus(here.env, node).gpus)} GPUs"
    is_limited = any(name in here.env for name in LIMITS[kind.vendor])
    if len(facts["devices"]) < len(node.gpus) and not is_limited:
        return warn(f"torch sees {seen}, and no variable *_VISIBLE_DEVICES hides the others", find_remedy(here, kind))
    return ok(f"computes on {seen}, {facts['devices'][0]}, with {runtime}")


def find_remedy(here, kind):
    """What to do if torch does not see GPUs."""
    values = [f"{name}={here.env[name]}" for name in LIMITS[kind.vendor] if name in here.env]
    if values:
        return f"correct or unset {', '.join(values)}"
    return f"in an image, start it with GPUs (--nv, --rocm); see your permission for {kind.files}, and the driver"

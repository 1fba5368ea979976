"""The arithmetic of a language model: operations of a token, the peak of a device, and the memory of a rank."""

from __future__ import annotations

import resource

import torch

from training.accelerator import module_of
from training.language.model import GPT

#: Part of a device's name -> its peak in TFLOP/s, bfloat16, without sparsity. The first match counts.
PEAKS = {
    "A100": 312,  # https://www.nvidia.com/en-us/data-center/a100/
    # https://nvdam.widen.net/s/rrgqqnpbz8/grace-datasheet-gh200-grace-hopper-superchip-3773000, half of 1,979 with
    # sparsity; its "990" is rounded up
    "GH200": 989,
    "H100 PCIe": 756,  # https://www.nvidia.com/en-us/data-center/h100/, half of the values with sparsity
    "H100 NVL": 835,
    "H100": 989,
    "H200 NVL": 835,  # https://www.nvidia.com/en-us/data-center/h200/, half of the values with sparsity
    "H200": 989,
    "MI250X": 191.5,  # of a GCD: https://www.amd.com/en/products/accelerators/instinct/mi200/mi250x.html, half of 383
    # https://www.amd.com/content/dam/amd/en/documents/instinct-tech-docs/data-sheets/amd-instinct-mi300a-data-sheet.pdf,
    # and amd-instinct-mi300x-data-sheet.pdf: 228 and 304 compute units, 2,048 operations a cycle each, 2.1 GHz
    "MI300A": 980.6,
    "MI300X": 1307.4,
}
# Operations of a vector engine of Intel's Data Center GPU Max in bfloat16: 512 each cycle at 1.3 GHz. A device is a
# stack or a card, and the number of its engines (448 or 512 a stack) tells which:
# https://www.intel.com/content/www/us/en/docs/oneapi/optimization-guide-gpu/2025-0/intel-xe-gpu-architecture.html
ENGINE_TERAFLOPS = 512 * 1.3e9 / 1e12


def peak_teraflops(name: str, engines: int = 0) -> float | None:
    """Return the peak of the device ``name`` in TFLOP/s in bfloat16, None if it is unknown."""
    if "Data Center GPU Max" in name:
        return engines * ENGINE_TERAFLOPS or None
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def peak_of(device: torch.device) -> float | None:
    """Return the peak of this rank's device in TFLOP/s in bfloat16; None for CPUs and unknown GPUs."""
    if device.type == "cpu":
        return None
    properties = module_of(device).get_device_properties(device)
    return peak_teraflops(properties.name, getattr(properties, "max_compute_units", 0))


def count_parameters(network: GPT) -> int:
    """Return the number of parameters of the whole model."""
    return sum(parameter.numel() for parameter in network.parameters())


def flops_per_token(network: GPT) -> int:
    """Return the operations of training on a token: 6 N + 12 L d T, after appendix B of the PaLM paper.

    N are the weights that are multiplied (without those of the places), L the blocks, d the width, T the
    context: https://arxiv.org/abs/2204.02311. As there, attention counts as if every byte saw all others of its
    window, and what is computed again with --recompute does not count.
    """
    (layers, width), context = network.shape, network.context
    return 6 * (count_parameters(network) - network.places.weight.numel()) + 12 * layers * width * context


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this rank has used so far: of its GPU, or of the host's memory."""
    if device.type == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # in KiB: getrusage(2)
    return module_of(device).max_memory_allocated(device)

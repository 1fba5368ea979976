"""Runs torchtitan on CPUs, which it does not support: torch.cpu replaces a GPU's module, SDPA FlexAttention.

Gradients are summed by SUM, as gloo has no PREMUL_SUM.
"""

import runpy
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule


def ignore(*_arguments, **_options):
    """Do nothing, in place of a function that only a GPU has."""


def attend(query, key, value, *, scale, enable_gqa, **_options):
    """Return causal attention and no auxiliary values; FlexAttention has no backward on CPUs."""
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(query, key, value, is_causal=True, scale=scale, enable_gqa=enable_gqa), None


torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda _device=None: "CPU"
torch.cpu.get_device_properties = lambda _device=None: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda _device=None: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = torch.cpu.set_device = ignore

from torchtitan.models.common.attention import FlexAttention  # noqa: E402 - it looks for a GPU when it is imported

divide = FSDPModule.set_gradient_divide_factor


def divide_after_sum(module, factor):
    """Set the divisor of gradients, which are summed without it."""
    divide(module, factor)
    module.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = divide_after_sum
FlexAttention._compiled_flex_attn = staticmethod(attend)
runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)

"""Runs torchtitan on CPUs, which it does not support: functions of torch.cpu replace those of a GPU's module.

Gradients are summed by SUM, as gloo has no PREMUL_SUM.
"""

import runpy
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule


def ignore(*_arguments, **_options):
    """Do nothing, in place of a function that only a GPU has."""


torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.get_device_name = lambda _device=None: "CPU"
torch.cpu.get_device_properties = lambda _device=None: SimpleNamespace(total_memory=2**30)
torch.cpu.memory_stats = lambda _device=None: {}
torch.cpu.current_device = lambda: 0
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = torch.cpu.set_device = ignore

divide = FSDPModule.set_gradient_divide_factor


def divide_after_sum(module, factor):
    """Set the divisor of gradients, which are summed without it."""
    divide(module, factor)
    module.set_force_sum_reduction_for_comms(True)


FSDPModule.set_gradient_divide_factor = divide_after_sum
runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)

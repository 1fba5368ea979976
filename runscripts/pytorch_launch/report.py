# SPDX-License-Identifier: BSD-3-Clause
"""Writes the line of one rank's decisions and their sources, for PYTORCH_LAUNCH_VERBOSE."""

from pytorch_launch import read
from pytorch_launch.facts import output_of
from pytorch_launch.topology import cpu_list

# Variables that a user may export to override a decision.
OVERRIDES = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")

# The vendor's own tool, by the kind of GPU.
DEVICE_TOOLS = {"amd": ["rocm-smi"], "nvidia": ["nvidia-smi"], "intel": ["xpu-smi", "discovery"]}


def line(plan):
    world, after = plan.world, {**plan.env, **plan.changes}
    place = plan.place or after  # the changes for torchrun's agent have no rendezvous, and a worker exports its own
    overridden = [name for name in OVERRIDES if plan.env.get(name) and not world.exported]
    cpus = f"CPUs {cpu_list(plan.placement.cpus)}{' (bound)' if plan.bind else ''}"
    return (
        f"{world.node}: rank {world.rank} of {world.size}, "
        f"local rank {world.local_rank} of {world.local_size}, node rank {world.node_rank}, "
        f"master {place.get('MASTER_ADDR')}:{place.get('MASTER_PORT')}, from {world.source}; "
        f"{device(plan.devices)}; "
        f"{cpus}, NUMA node {cpu_list(plan.placement.numa) or 'unknown'}, "
        f"OMP_NUM_THREADS {after.get('OMP_NUM_THREADS', 'not set')}; "
        f"Python of {plan.python or 'the module'}; "
        f"interface {interface(after, plan.root)}; "
        f"caches in {plan.caches or 'their default places'}; "
        f"exported before: {', '.join(overridden) or 'nothing'}"
    )


def device(devices):
    if devices.index is None:
        return "no GPU"
    where = devices.gpu.pci if devices.gpu else "PCI address unknown"
    return f"device {devices.index} of {devices.count} {devices.vendor} ({where})"


def interface(env, root=""):
    """The network interfaces that torch is set to use, else that of the default route, else the loopback."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if env.get(name):
            return env[name]
    routes = read(f"{root}/proc/net/route")
    if routes is None:
        return "unknown"
    for route in routes.splitlines():  # route(8): Iface Destination Gateway ...
        fields = route.split()
        if fields[1:2] == ["00000000"]:
            return fields[0]
    return "lo"


def show_devices(vendor, env):
    """The output of the vendor's own tool."""
    tool, *arguments = DEVICE_TOOLS[vendor]
    return output_of(tool, arguments, env, also_failed=True) or f"{tool} failed, or is not on PATH\n"

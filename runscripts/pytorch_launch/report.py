"""The line that says what was decided for one rank and why; called by `launch` on demand."""

# Importing pathlib takes longer than all that this package does.
# ruff: noqa: PTH123

import posix

from pytorch_launch.system import become, environment, write
from pytorch_launch.topology import cpu_list

# What a user may export to overrule a decision.
OVERRULED = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")

# The vendor's own tool, by the kind of GPU.
DEVICE_TOOLS = {"amd": "rocm-smi", "nvidia": "nvidia-smi"}


def line(rank, root=""):
    """What was decided for a `rank.Rank`, as one line; `root` is where /proc is."""
    world, after = rank.world, {**rank.env, **rank.changes}
    overruled = [name for name in OVERRULED if rank.env.get(name) and not world.exported]
    cpus = f"CPUs {cpu_list(rank.placement.cpus)}{' (bound)' if rank.placement.bind else ''}"
    return (
        f"{world.node}: rank {world.rank} of {world.size}, "
        f"local rank {world.local_rank} of {world.local_size}, node rank {world.node_rank}, "
        f"master {after.get('MASTER_ADDR')}:{after.get('MASTER_PORT')}, from {world.source}; "
        f"{device(rank.devices)}; "
        f"{cpus}, NUMA node {cpu_list(rank.placement.numa) or 'unknown'}, "
        f"OMP_NUM_THREADS {after.get('OMP_NUM_THREADS', 'not set')}; "
        f"interface {interface(after, root)}; "
        f"caches in {rank.caches or 'their default places'}; "
        f"exported before: {', '.join(overruled) or 'nothing'}"
    )


def device(devices):
    """The GPU of a rank."""
    if devices.index is None:
        return "no GPU"
    where = devices.gpu.pci if devices.gpu else "PCI address unknown"
    return f"device {devices.index} of {devices.count} {devices.vendor} ({where})"


def interface(env, root=""):
    """The network interfaces that torch is told to use, else that of the default route, else the loopback."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if env.get(name):
            return env[name]
    try:
        with open(f"{root}/proc/net/route") as routes:  # route(8): Iface Destination Gateway ...
            for route in routes:
                fields = route.split()
                if fields[1:2] == ["00000000"]:
                    return fields[0]
    except OSError:
        return "unknown"
    return "lo"


def show_devices(vendor):
    """Run the vendor's own tool, its output on standard error; a node without one is no error."""
    if vendor is None:
        return
    tool = DEVICE_TOOLS[vendor]
    process = posix.fork()
    if process == 0:
        try:
            posix.dup2(2, 1)
            become(tool, [], environment())
        except OSError as error:
            write(2, f"{tool}: {error.strerror or 'not on PATH'}\n")
        finally:
            posix._exit(127)
    posix.waitpid(process, 0)

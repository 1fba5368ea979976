# SPDX-License-Identifier: BSD-3-Clause
"""Reads the hardware of this node from /sys and /proc.

`root` goes before every path: "" on a node, a directory in the tests. Unreadable files count as missing:
a container hides them, a device cgroup forbids them, or the kernel is older than the file.
"""

from pytorch_launch import exists, names, read

NVIDIA_CONTROL = "/dev/nvidiactl"
NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
AMD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = {"amd": "/sys/bus/pci/drivers/amdgpu", "nvidia": "/sys/bus/pci/drivers/nvidia"}
#: The newer and the older driver of Intel's GPUs.
INTEL_DRIVERS = "/sys/bus/pci/drivers/xe", "/sys/bus/pci/drivers/i915"
CPUS = "/sys/devices/system/cpu"
NUMA_NODES = "/sys/devices/system/node"


class Gpu:
    """A GPU of this node, of Intel's a tile; equal to itself only.

    `vendor`     "amd", "nvidia" or "intel"
    `pci`        its PCI address, as `0000:c1:00.0`
    `partition`  its number among the partitions, or the tiles, of a GPU, which have one address; else 0
    `numa_node`  the NUMA node that it is attached to, None if the firmware does not report it
    `uuid`       as the vendor's tools print it, None if there is none

    Most ranks do not need the last two, so their files are read on first use.
    """

    __slots__ = ("numa_node", "partition", "pci", "root", "uuid", "vendor")

    def __init__(self, root, vendor, pci, partition=0):
        self.root = root
        self.vendor = vendor
        self.pci = pci
        self.partition = partition

    @property
    def location(self):
        """The same for every Gpu object of this GPU."""
        return self.pci, self.partition

    def __getattr__(self, name):  # of a slot without a value
        if name == "numa_node":
            text = read(f"{self.root}{PCI_DEVICES}/{self.pci}/numa_node")
            # -1 in virtual machines and where the firmware has no table (Documentation/ABI/testing/sysfs-bus-pci)
            self.numa_node = int(text) if text and text.isdecimal() else None
        elif name == "uuid":
            text = read(f"{self.root}{NVIDIA_GPUS}/{self.pci}/information") or ""
            values = {
                key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())
            }
            self.uuid = values.get("GPU UUID")
        return object.__getattribute__(self, name)


def gpus(root):
    """The GPUs that this process may use, in the order in which the vendor's runtime counts them."""
    return _nvidia_gpus(root) or _amd_gpus(root) or _intel_gpus(root)


def all_gpus(root, vendor):
    """The GPUs of this node in PCI order, including those of other jobs, which a device cgroup hides."""
    if vendor == "intel":
        return _intel_gpus(root)
    addresses = [name for name in sorted(names(root + PCI_DRIVERS[vendor])) if ":" in name]
    partitions = range(_partitions(root, len(addresses)) if vendor == "amd" else 1)
    return [Gpu(root, vendor, pci, number) for pci in addresses for number in partitions]


def numa_cpus(root):
    """The CPUs of each NUMA node: {0: {0, 1}, 1: {2, 3}}.

    Nodes with only memory are left out, unless the kernel does not list the others (`has_cpu`): a node with four
    GH200 has 4 NUMA nodes with CPUs, and 32 for the memory of the GPUs.
    """
    nodes = parse_cpu_list(read(f"{root}{NUMA_NODES}/has_cpu") or "") or _numa_nodes(root)
    return {node: parse_cpu_list(read(f"{root}{NUMA_NODES}/node{node}/cpulist") or "") for node in sorted(nodes)}


def numa_distances(root, node, nodes):
    """The distance from `node` to each of `nodes`.

    Without a table all distances are equal. 10 is `node` itself (ACPI, System Locality Information Table).
    """
    # one for each node of this machine, in ascending order
    distances = (read(f"{root}{NUMA_NODES}/node{node}/distance") or "").split()
    columns = sorted(nodes if len(distances) == len(nodes) else _numa_nodes(root))
    if not distances or len(distances) != len(columns):
        return dict.fromkeys(nodes, 0)
    return {other: int(distance) for other, distance in zip(columns, distances) if other in nodes}


def online_cpus(root):
    return parse_cpu_list(read(f"{root}{CPUS}/online") or "")


def has_hardware_threads(root):
    """Whether a core may be more than one CPU; true if the kernel (before 4.19) does not report it."""
    return read(f"{root}{CPUS}/smt/active") != "0"


def thread_siblings(root, cpu):
    # the newer name of the two (Documentation/ABI/stable/sysfs-devices-system-cpu) came with kernel 5.3
    for name in ("thread_siblings_list", "core_cpus_list"):
        siblings = parse_cpu_list(read(f"{root}{CPUS}/cpu{cpu}/topology/{name}") or "")
        if cpu in siblings:
            return siblings
    return {cpu}


def parse_cpu_list(text):
    """The CPUs of a list in the kernel's format: `0-2,8` is {0, 1, 2, 8}."""
    cpus = set()
    for run in text.split(","):
        low, _, high = run.partition("-")
        if low:
            cpus.update(range(int(low), int(high or low) + 1))
    return cpus


def cpu_list(cpus):
    """CPU numbers in the kernel's list format: {0, 1, 2, 8} is `0-2,8`."""
    runs = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)


def _numa_nodes(root):
    return [int(name[4:]) for name in names(root + NUMA_NODES) if name.startswith("node") and name[4:].isdecimal()]


def _nvidia_gpus(root):
    """In the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is nvidia-smi's too.

    A container that was started without its option for GPUs sees /proc but no device: no GPUs.
    """
    if not exists(root + NVIDIA_CONTROL):
        return []
    return [Gpu(root, "nvidia", name) for name in sorted(names(root + NVIDIA_GPUS))]


def _amd_gpus(root):
    """In the order of the kernel's driver, in which the ROCm runtime finds them.

    The node of a GPU in another cgroup has its directory, but reading there fails with EPERM (kfd_topology.c,
    kfd_devcgroup_check_permission), and the runtime does not count it.
    """
    found = []
    for node in sorted(map(int, filter(str.isdecimal, names(root + AMD_NODES)))):
        properties = {}
        for line in (read(f"{root}{AMD_NODES}/{node}/properties") or "").splitlines():
            name, _, value = line.partition(" ")
            properties[name] = value
        if int(properties.get("simd_count", 0)) == 0:  # hidden, or a CPU
            continue
        # bits 28 to 31 are the number of a partition (kfd_topology_add_device)
        partition, location = divmod(int(properties.get("location_id", 0)), 1 << 28)
        pci = f"{int(properties.get('domain', 0)):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
        unique = int(properties.get("unique_id", 0))
        found.append(Gpu(root, "amd", pci, partition))
        found[-1].uuid = f"GPU-{unique:016x}" if unique else None
    return found


def _partitions(root, count):
    """The number of partitions of each of `count` GPUs of AMD: with MI300A 1, 3 (mode TPX) or 6 (CPX).

    All GPUs of a node are taken to have as many. The driver's topology has a directory for each partition, also in
    another cgroup, and for each NUMA node with CPUs.
    """
    partitions = len(list(filter(str.isdecimal, names(root + AMD_NODES)))) - len(numa_cpus(root))
    return max(1, partitions // count) if count else 1


def _intel_gpus(root):
    """In PCI order, see `xpu`."""
    if not any(exists(root + driver) for driver in INTEL_DRIVERS):
        return []
    from pytorch_launch.xpu import intel_tiles

    return [
        Gpu(root, "intel", pci, partition=tile) for pci, tile in intel_tiles(root, root + PCI_DEVICES, INTEL_DRIVERS)
    ]

# SPDX-License-Identifier: BSD-3-Clause
"""Reads from /sys and /proc what a plan depends on beside the environment, each file once, when it is needed.

Unreadable files count as missing: a container hides them, a device cgroup forbids them, or the kernel is older.
"""

import posix as os

from pytorch_launch import ancestors, exists, is_number, names, read

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
    `uuid`       as the vendor's tools print it, None if there is none
    `numa_node`  the NUMA node that it is attached to, None if the firmware does not report it
    """

    def __init__(self, root, vendor, pci, partition=0, uuid=None):
        self.vendor, self.pci, self.partition, self.uuid = vendor, pci, partition, uuid
        text = read(f"{root}{PCI_DEVICES}/{pci}/numa_node") or ""
        # -1 in virtual machines and where the firmware has no table (Documentation/ABI/testing/sysfs-bus-pci)
        self.numa_node = int(text) if text.isdecimal() else None


class Node:
    """This process and the hardware of its node below `root`: "" on a node, a directory in the tests.

    `host`           name of this host
    `pid`, `uid`     numbers of this process and of its effective user
    `launcher`       number of mpirun or its daemon here, None if there is none, and in a container that hides it
    `launcher_cpus`  its CPUs, or None
    `allowed`        the affinity mask of this rank, a set of CPUs
    `gpus`           those that this process may use, in the order in which the vendor's runtime counts them
    `all_gpus`       the same with those of other jobs, which a device cgroup hides, in PCI order
    `numa`           the CPUs of each NUMA node, in ascending order; none on those that are memory of GPUs (GH200)
    `online`         the CPUs of the node
    `has_threads`    whether a core may be more than one CPU; true if the kernel (before 4.19) does not report it
    """

    def __init__(self, root="", **known):
        self.root = root
        self._threads = {}  # of those that were asked for
        self.__dict__.update(known)

    def __getattr__(self, name):
        if name not in READERS:
            raise AttributeError(name)
        self.__dict__[name] = READERS[name](self)
        return self.__dict__[name]

    def threads(self, cpu):
        """The CPUs of the core of one of them, in ascending order."""
        if not self.has_threads:
            return [cpu]
        if cpu not in self._threads:
            text = read(f"{self.root}{CPUS}/cpu{cpu}/topology/thread_siblings_list")
            siblings = sorted(parse_cpu_list(text or str(cpu)))
            self._threads.update(dict.fromkeys(siblings, siblings))
        return self._threads[cpu]

    def cores(self, cpus):
        """The cores of `cpus` in order of number, each a list of those of `cpus` that are its threads."""
        found = {}
        for cpu in sorted(cpus):
            found.setdefault(self.threads(cpu)[0], []).append(cpu)
        return [found[core] for core in sorted(found)]

    def on_numa(self, cpus):
        """Those of `cpus` on each NUMA node that has any; all on node 0 if there are no such nodes."""
        return {number: own & cpus for number, own in self.numa.items() if own & cpus} or {0: set(cpus)}

    def distances(self, number):
        """The distance from a NUMA node to each, 10 to itself (ACPI, System Locality Information Table), if known."""
        distances = (read(f"{self.root}{NUMA_NODES}/node{number}/distance") or "").split()
        return dict(zip(self.numa, map(int, distances)))


def parse_cpu_list(text):
    """The CPUs of a list in the kernel's format: `0-2,8` is {0, 1, 2, 8}."""
    cpus = set()
    for run in filter(None, text.split(",")):
        low, _, high = run.partition("-")
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


def _all_gpus(node):
    if not node.gpus or node.gpus[0].vendor == "intel":
        return node.gpus
    root, vendor = node.root, node.gpus[0].vendor
    addresses = [name for name in sorted(names(root + PCI_DRIVERS[vendor])) if ":" in name]
    partitions = 1
    if vendor == "amd" and addresses:
        # With MI300A 1, 3 (mode TPX) or 6 (CPX) of each GPU, taken to be as many of all. The driver's topology has a
        # directory for each partition, also in another cgroup, and for each NUMA node with CPUs.
        partitions = max(1, (len(_numbers(root + AMD_NODES)) - sum(map(bool, node.numa.values()))) // len(addresses))
    seen = {(gpu.pci, gpu.partition): gpu for gpu in node.gpus}
    locations = [(pci, number) for pci in addresses for number in range(partitions)]
    return [seen.get(location) or Gpu(root, vendor, *location) for location in locations]


def read_table(path, separator):
    """The lines of a file as name to value, none if it cannot be read."""
    lines = (line.partition(separator) for line in (read(path) or "").splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _nvidia_gpus(root):
    """In the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is nvidia-smi's too.

    /proc has them all. A container that was started without its option for GPUs has no device files, and a device
    cgroup forbids those of other jobs, also in access(2) (Linux, devcgroup_inode_permission).
    """
    found = []
    for pci in sorted(names(root + NVIDIA_GPUS)):
        facts = read_table(f"{root}{NVIDIA_GPUS}/{pci}/information", ":")
        if os.access(f"{root}/dev/nvidia{facts.get('Device Minor')}", os.R_OK | os.W_OK):
            found.append(Gpu(root, "nvidia", pci, uuid=facts.get("GPU UUID")))
    return found


def _amd_gpus(root):
    """In the order of the kernel's driver, in which the ROCm runtime finds them.

    The node of a GPU in another cgroup has its directory, but reading there fails with EPERM (kfd_topology.c,
    kfd_devcgroup_check_permission), and the runtime does not count it.
    """
    found = []
    for node in _numbers(root + AMD_NODES):
        facts = read_table(f"{root}{AMD_NODES}/{node}/properties", " ")
        number = {name: int(facts.get(name, 0)) for name in ("simd_count", "location_id", "domain", "unique_id")}
        if number["simd_count"]:  # else hidden, or a CPU
            # bits 28 to 31 are the number of a partition (kfd_topology_add_device)
            partition, location = divmod(number["location_id"], 1 << 28)
            pci = f"{number['domain']:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            uuid = f"GPU-{number['unique_id']:016x}" if number["unique_id"] else None
            found.append(Gpu(root, "amd", pci, partition, uuid))
    return found


def _intel_gpus(root):
    """Each tile in PCI order, which Level Zero has with ZE_ENABLE_PCI_ID_DEVICE_ORDER=1.

    It compares the PCI domain first (compute-runtime, execution_environment_drm.cpp, comparePciIdBusNumber). A graphics
    unit of a CPU, which is on bus 0, is left out, as is what is no display controller without VGA (0x0380 in pci.ids),
    which lspci reports for the Data Center GPUs Max and Flex. A container may hide the devices that Level Zero opens.
    """
    found = []
    for pci in sorted({name for driver in INTEL_DRIVERS for name in names(root + driver) if name.count(":") == 2}):
        device = f"{root}{PCI_DEVICES}/{pci}"
        if pci.split(":")[1] != "00" and (read(f"{device}/class") or "").startswith("0x0380"):
            # xe has a directory for each tile (xe_tile_sysfs.c), i915 for the graphics part of each, below that of the
            # card (sysfs-driver-intel-i915, gt<i>)
            cards = [f"{device}/drm/card{number}/gt" for number in _numbers(f"{device}/drm", "card")]
            tiles = max(1, len(_numbers(device, "tile")), *(len(_numbers(card, "gt")) for card in cards))
            found += [Gpu(root, "intel", pci, tile) for tile in range(tiles)]
    return found if exists(f"{root}/dev/dri") else []


def _numbers(directory, prefix=""):
    """The numbers in the names of a directory that are `prefix` and a number, in ascending order."""
    found = (name[len(prefix) :] for name in names(directory) if name.startswith(prefix))
    return sorted(map(int, filter(is_number, found)))


#: Programs of Open MPI, MPICH, Intel MPI and PALS that start ranks, as the kernel shortens their names, with Debian's.
STARTERS = (
    *("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte", "hydra_pmi_proxy", "mpiexec.hydra", "palsd"),
    *("mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich"),
)


def _launcher_cpus(node):
    try:
        return None if node.root or node.launcher is None else os.sched_getaffinity(node.launcher)
    except OSError:
        return None


#: The attributes of a Node that are read when they are needed.
READERS = {
    "host": lambda _: os.uname().nodename,
    "pid": lambda _: os.getpid(),
    "uid": lambda _: os.geteuid(),
    "launcher": lambda _: next((int(pid) for pid, name in ancestors() if name in STARTERS), None),
    "launcher_cpus": _launcher_cpus,
    "allowed": lambda _: os.sched_getaffinity(0),
    "gpus": lambda node: _nvidia_gpus(node.root) or _amd_gpus(node.root) or _intel_gpus(node.root),
    "all_gpus": _all_gpus,
    "numa": lambda node: {
        number: parse_cpu_list(read(f"{node.root}{NUMA_NODES}/node{number}/cpulist") or "")
        for number in _numbers(node.root + NUMA_NODES, "node")
    },
    "online": lambda node: parse_cpu_list(read(f"{node.root}{CPUS}/online") or ""),
    "has_threads": lambda node: read(f"{node.root}{CPUS}/smt/active") != "0",
}

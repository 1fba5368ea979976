# SPDX-License-Identifier: BSD-3-Clause
"""Reads the hardware of this node from /sys and /proc, once, into a Node.

Unreadable files count as missing: a container hides them, a device cgroup forbids them, or the kernel is older.
"""

import os

from pytorch_launch import Record, ancestors, is_number, names, read

NVIDIA_GPUS = "/proc/driver/nvidia/gpus"
AMD_NODES = "/sys/class/kfd/kfd/topology/nodes"
PCI_DEVICES = "/sys/bus/pci/devices"
PCI_DRIVERS = {"amd": "/sys/bus/pci/drivers/amdgpu", "nvidia": "/sys/bus/pci/drivers/nvidia"}
CPUS = "/sys/devices/system/cpu"
NUMA_NODES = "/sys/devices/system/node"


class Gpu(Record):
    """A GPU of this node.

    `vendor`     "amd" or "nvidia"
    `pci`        its PCI address, as `0000:c1:00.0`
    `partition`  its number among the partitions of a GPU, which have one address; else 0
    `uuid`       as the vendor's tools print it, None if there is none
    `numa_node`  the NUMA node that it is attached to, None if the firmware does not report it
    """

    fields = "vendor pci partition uuid numa_node"


class Node(Record):
    """This process and the hardware of its node.

    `root`           "" on a node, in the tests a directory with its files
    `host`           name of this host
    `pid`, `parent`  numbers of this process and of its parent
    `uid`            number of its effective user
    `launcher`       number of mpirun or its daemon here, None if there is none, and in a container that hides it
    `launcher_cpus`  its CPUs, or None
    `allowed`        the affinity mask of this rank, a set of CPUs
    `online`         the CPUs of the node
    `gpus`           those that this process may use, in the order in which the vendor's runtime counts them
    `all_gpus`       the same with those of other jobs, which a device cgroup hides, in PCI order
    `numa`           number of each NUMA node to its CPUs; none on those that are memory of GPUs (GH200)
    `distances`      number of each NUMA node without a GPU to its distances to all, if there are GPUs
    `siblings`       each allowed CPU to the CPUs of its core, in ascending order; empty if each core is one CPU
    """

    fields = "root host pid parent uid launcher launcher_cpus allowed online gpus all_gpus numa distances siblings"

    def threads(self, cpu):
        """The CPUs of the core of one of the allowed CPUs, in ascending order."""
        return self.siblings.get(cpu, [cpu])

    def cores(self, cpus):
        """The cores of `cpus` in order of number, each a list of those of `cpus` that are its threads."""
        found = {}
        for cpu in sorted(cpus):
            found.setdefault(self.threads(cpu)[0], []).append(cpu)
        return [found[core] for core in sorted(found)]

    def on_numa(self, cpus):
        """NUMA node to those of `cpus` on it, for each that has any; all on node 0 if there are no NUMA nodes."""
        found = {}
        for number, own in self.numa.items():
            if own & cpus:
                found[number] = own & cpus
        return found or {0: set(cpus)}


def read_node(root="", *, programs=(), allowed=None):
    """The Node below `root`. `programs` are names of MPI's programs, `allowed` the CPUs in place of the mask."""
    if allowed is None:
        allowed = os.sched_getaffinity(0)
    launcher, launcher_cpus = _find_launcher(programs)
    gpus = _nvidia_gpus(root) or _amd_gpus(root)
    numa = _numa_nodes(root)
    all_gpus = _all_gpus(root, gpus, numa)
    return Node(
        root=root,
        host=os.uname().nodename,
        pid=os.getpid(),
        parent=os.getppid(),
        uid=os.geteuid(),
        launcher=launcher,
        launcher_cpus=launcher_cpus,
        allowed=allowed,
        online=parse_cpu_list(read(f"{root}{CPUS}/online") or ""),
        gpus=gpus,
        all_gpus=all_gpus,
        numa=numa,
        distances=_distances(root, numa, all_gpus),
        siblings=_siblings(root, allowed),
    )


def _find_launcher(programs):
    """The number of the process above this one whose program is one of `programs`, and its CPUs; None for unknown."""
    for pid, name in ancestors():
        if name in programs:
            try:
                return int(pid), os.sched_getaffinity(int(pid))
            except OSError:
                return int(pid), None
    return None, None


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
        if cpu - 1 not in cpus:
            low = cpu
        if cpu + 1 not in cpus:
            runs.append(f"{low}-{cpu}" if low < cpu else str(cpu))
    return ",".join(runs)


def read_table(path, separator):
    """The lines of a file as name to value, none if it cannot be read."""
    lines = [line.partition(separator) for line in (read(path) or "").splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}


def _gpu(root, vendor, pci, partition=0, uuid=None):
    text = read(f"{root}{PCI_DEVICES}/{pci}/numa_node") or ""
    # -1 in virtual machines and where the firmware has no table (Documentation/ABI/testing/sysfs-bus-pci)
    numa_node = int(text) if is_number(text) else None
    return Gpu(vendor, pci, partition, uuid, numa_node)


def _nvidia_gpus(root):
    """In the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is nvidia-smi's too.

    /proc has them all. A container that was started without its option for GPUs has no device files, and a device
    cgroup forbids those of other jobs, also in access(2) (Linux, devcgroup_inode_permission).
    """
    found = []
    for pci in sorted(names(root + NVIDIA_GPUS)):
        facts = read_table(f"{root}{NVIDIA_GPUS}/{pci}/information", ":")
        if os.access(f"{root}/dev/nvidia{facts.get('Device Minor')}", os.R_OK | os.W_OK):
            found.append(_gpu(root, "nvidia", pci, uuid=facts.get("GPU UUID")))
    return found


def _amd_gpus(root):
    """In the order of the kernel's driver, in which the ROCm runtime finds them.

    The node of a GPU in another cgroup has its directory, but reading there fails with EPERM (kfd_topology.c,
    kfd_devcgroup_check_permission), and the runtime does not count it.
    """
    found = []
    for node in _numbers(root + AMD_NODES):
        facts = read_table(f"{root}{AMD_NODES}/{node}/properties", " ")
        if int(facts.get("simd_count", 0)):  # else hidden, or a CPU
            # bits 28 to 31 are the number of a partition (kfd_topology_add_device)
            partition, location = divmod(int(facts.get("location_id", 0)), 1 << 28)
            pci = f"{int(facts.get('domain', 0)):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            unique = int(facts.get("unique_id", 0))
            uuid = f"GPU-{unique:016x}" if unique else None
            found.append(_gpu(root, "amd", pci, partition, uuid))
    return found


def _all_gpus(root, gpus, numa):
    """The GPUs of the node, those that this process may use among them; none without these."""
    if not gpus:
        return []
    vendor = gpus[0].vendor
    addresses = [name for name in sorted(names(root + PCI_DRIVERS[vendor])) if ":" in name]
    partitions = 1
    if vendor == "amd" and addresses:
        # With MI300A 1, 3 (mode TPX) or 6 (CPX) of each GPU, taken to be as many of all. The driver's topology has a
        # directory for each partition, also in another cgroup, and for each NUMA node with CPUs.
        nodes_of_gpus = len(_numbers(root + AMD_NODES)) - sum(map(bool, numa.values()))
        partitions = max(1, nodes_of_gpus // len(addresses))
    seen = {(gpu.pci, gpu.partition): gpu for gpu in gpus}
    found = []
    for pci in addresses:
        for number in range(partitions):
            found.append(seen.get((pci, number)) or _gpu(root, vendor, pci, number))
    return found


def _numa_nodes(root):
    numbers = _numbers(root + NUMA_NODES, "node")
    return {number: parse_cpu_list(read(f"{root}{NUMA_NODES}/node{number}/cpulist") or "") for number in numbers}


def _distances(root, numa, gpus):
    """See Node; a distance is 10 to itself (ACPI, System Locality Information Table)."""
    if not gpus:
        return {}
    found = {}
    for number in set(numa) - {gpu.numa_node for gpu in gpus}:
        if numa[number]:
            text = read(f"{root}{NUMA_NODES}/node{number}/distance") or ""
            found[number] = dict(zip(numa, map(int, text.split())))
    return found


def _siblings(root, cpus):
    if read(f"{root}{CPUS}/smt/active") == "0":  # a kernel before 4.19 does not report it
        return {}
    found = {}
    for cpu in sorted(cpus):
        if cpu not in found:
            text = read(f"{root}{CPUS}/cpu{cpu}/topology/thread_siblings_list")
            threads = sorted(parse_cpu_list(text or str(cpu)))
            found.update(dict.fromkeys(threads, threads))
    return found


def _numbers(directory, prefix=""):
    """The numbers in the names of a directory that are `prefix` and a number, in ascending order."""
    found = [name[len(prefix) :] for name in names(directory) if name.startswith(prefix)]
    return sorted(int(text) for text in found if is_number(text))

"""Nodes as directories: the files of /sys and /proc that tell of their hardware; for the tests of the runscripts.

What is where on the real ones:

LUMI-G      LUMI user guide, "Distribution and binding options" (NUMA nodes of the GPUs, one core of each L3 cache
            reserved), LUMI training materials, "Process and Thread Distribution and Binding" (PCI addresses)
Frontier    Frontier User Guide, "Low-noise Mode Layout"; README of OLCF's hello_jobstep (PCI addresses)
Perlmutter  NERSC, "Perlmutter Architecture"; `nvidia-smi topo -m` there: GPU 0 to 3 on NUMA nodes 3 to 0
DGX A100    `nvidia-smi topo -m` there: NUMA nodes 3, 3, 1, 1, 7, 7, 5, 5, and `nvidia-smi` for the PCI addresses
Alps        CSCS, "NCCL" (PCI addresses) and "Slurm" (cores; GPU i at NUMA node i);
            https://github.com/NVIDIA/mlperf-common/pull/16 (36 NUMA nodes, 8 of each GPU)
RZAdams     LLNL, https://github.com/LLNL/mpibind, tutorials/cug24/module4.md (PCI addresses, cores) and issue 45
            (partitions); https://github.com/amd/HPCTrainingExamples, rocprofv3 (nodes of the driver)
"""

from functools import partial


def gpus_at(buses, numa_nodes):
    """GPUs as PCI address to NUMA node, from the numbers of their buses and of their NUMA nodes."""
    return {f"0000:{bus}:00.0": int(number) for bus, number in zip(buses.split(), numa_nodes.split())}


LUMI_G = gpus_at("c1 c6 c9 cc d1 d6 d9 dc", "3 3 1 1 0 0 2 2")
FRONTIER = gpus_at("c1 c6 c9 ce d1 d6 d9 de", "3 3 1 1 0 0 2 2")
PERLMUTTER = gpus_at("03 41 82 c1", "3 2 1 0")
DGX_A100 = gpus_at("07 0f 47 4e 87 90 b7 bd", "3 3 1 1 7 7 5 5")

GH200 = {f"00{number}9:01:00.0": number for number in range(4)}
MI300A = {f"000{number}:02:00.0": number for number in range(4)}

# LUMI user guide: the masks of ranks 0 to 7 for the GPUs in their order
LUMI_G_MASKS = "0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000"

# On LUMI-G and Frontier jobs have all cores but the first of each L3 cache of eight.
JOB_CORES = {core for core in range(64) if core % 8}
JOB_THREADS = JOB_CORES | {core + 64 for core in JOB_CORES}


def node(directory, *, cores, threads=2, numa_nodes=1, sockets=1, memory_nodes=0, vendor=None, gpus=None, partitions=1):
    """Write a node whose cores are spread evenly over its NUMA nodes; return its root, as a string.

    Core c has the CPUs c, c + cores, and so on, as on the EPYCs. `gpus` maps PCI addresses to NUMA nodes, and each is
    that many `partitions`. `memory_nodes` is the number of NUMA nodes without CPUs.
    """
    gpus = gpus or {}
    write_cpus(directory, cores, threads)
    of_node = cores // numa_nodes
    for number in range(numa_nodes + memory_nodes):
        place = directory / f"sys/devices/system/node/node{number}"
        runs = []
        if number < numa_nodes:
            firsts = range(of_node * number, cores * threads, cores)
            runs = [f"{first}-{first + of_node - 1}" for first in firsts]
            write(place / "distance", distances(number, numa_nodes, sockets, memory_nodes))
        write(place / "cpulist", ",".join(runs))
    driver = directory / "sys/bus/pci/drivers" / {"amd": "amdgpu", "nvidia": "nvidia", None: "none"}[vendor]
    write(driver / "uevent", "")
    for pci, numa_node in gpus.items():
        write(directory / f"sys/bus/pci/devices/{pci}/numa_node", str(numa_node))
        (driver / pci).mkdir()
    if vendor == "nvidia":
        write_nvidia_gpus(directory, list(gpus))
    if vendor == "amd":
        write_amd_nodes(directory, numa_nodes, gpus, partitions)
    return str(directory)


def write_cpus(directory, cores, threads):
    cpus = directory / "sys/devices/system/cpu"
    write(cpus / "online", f"0-{cores * threads - 1}")
    write(cpus / "smt/active", str(int(threads > 1)))
    for cpu in range(cores * threads):
        siblings = range(cpu % cores, cores * threads, cores)
        write(cpus / f"cpu{cpu}/topology/thread_siblings_list", ",".join(map(str, siblings)))


def distances(number, numa_nodes, sockets, memory_nodes):
    """The distances of a NUMA node to all: itself, those of its socket, those of another one, memory alone."""
    of_socket = numa_nodes // sockets
    found = [32] * numa_nodes + [80] * memory_nodes
    first = number // of_socket * of_socket
    found[first : first + of_socket] = [12] * of_socket
    found[number] = 10
    return " ".join(map(str, found))


def write_nvidia_gpus(directory, addresses):
    for count, pci in enumerate(addresses):
        uuid = f"GPU-{count:x}{'0' * 7}-d72c-4106-c12f-20bd9faed9f6"
        minor = len(addresses) - 1 - count  # in the order in which the driver found them, which may be another
        information = f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t {200 + count}\nGPU UUID: \t {uuid}\n"
        information += f"Bus Location: \t {pci}\nDevice Minor: \t {minor}\n"
        write(directory / f"dev/nvidia{minor}", "")
        write(directory / f"proc/driver/nvidia/gpus/{pci}/information", information)


def write_amd_nodes(directory, numa_nodes, gpus, partitions=1):
    """The topology of the kernel's driver, in which the CPUs come first."""
    for number in range(numa_nodes):
        write(amd_properties(directory, number), "cpu_cores_count 32\nsimd_count 0\nlocation_id 0\ndomain 0\n")
    for number, (pci, partition) in enumerate((pci, partition) for pci in gpus for partition in range(partitions)):
        domain, bus, rest = pci.split(":")
        device, function = rest.split(".")
        location = partition << 28 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function)
        write(
            amd_properties(directory, numa_nodes + number),
            f"cpu_cores_count 0\nsimd_count 440\nlocation_id {location}\ndomain {int(domain, 16)}\n"
            f"unique_id {0xDEADBEEF00000000 + number}\n",
        )


def hide_amd_gpu(root, numa_nodes, number):
    """Let GPU `number` be one that a device cgroup forbids: its file opens, but reading it fails."""
    properties = amd_properties(root, numa_nodes + number)
    properties.unlink()
    properties.mkdir()


def hide_nvidia_gpus(root, *numbers):
    """Let GPUs be some whose device files a device cgroup forbids: access(2) fails."""
    count = len(list((root / "proc/driver/nvidia/gpus").iterdir()))
    for number in numbers:
        (root / f"dev/nvidia{count - 1 - number}").unlink()


def amd_properties(directory, number):
    """The file of one node of the driver's topology."""
    return directory / f"sys/class/kfd/kfd/topology/nodes/{number}/properties"


def write(path, text):
    """Write a file with the newline that the kernel's have."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


#: One EPYC 7A53 with 64 cores in 4 NUMA nodes, 8 halves of MI250X, each a GPU; Frontier has the same hardware.
lumi_g = partial(node, cores=64, numa_nodes=4, vendor="amd", gpus=LUMI_G)
frontier = partial(node, cores=64, numa_nodes=4, vendor="amd", gpus=FRONTIER)
#: One EPYC 7763 with 64 cores in 4 NUMA nodes, 4 A100.
perlmutter = partial(node, cores=64, numa_nodes=4, vendor="nvidia", gpus=PERLMUTTER)
#: Two EPYC 7742 with 64 cores and 4 NUMA nodes each, 8 A100 on every other one.
dgx_a100 = partial(node, cores=128, numa_nodes=8, sockets=2, vendor="nvidia", gpus=DGX_A100)
#: Four superchips of 72 cores and a GPU, whose memory is 8 NUMA nodes without CPUs.
gh200 = partial(node, cores=288, threads=1, numa_nodes=4, sockets=4, memory_nodes=32, vendor="nvidia", gpus=GH200)
#: Four APUs of 24 cores and a GPU, with one, 3 or 6 `partitions` (SPX, TPX, CPX).
mi300a = partial(node, cores=96, numa_nodes=4, sockets=4, vendor="amd", gpus=MI300A)
#: 8 CPUs and two GPUs whose location the hypervisor does not report.
virtual_machine = partial(node, cores=8, threads=1, vendor="nvidia", gpus={"0000:00:05.0": -1, "0000:00:06.0": -1})
#: 4 cores and no GPU.
laptop = partial(node, cores=4)

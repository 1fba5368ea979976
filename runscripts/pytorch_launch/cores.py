# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the CPU cores of a rank, those nearest to its GPU.

A mask of this rank's own, from the user, Slurm or mpirun, is kept. A mask that all ranks of the node have
in common is cut into shares, identically on every rank, without communication.
"""

from pytorch_launch import Problem, Value
from pytorch_launch.topology import (
    all_gpus,
    cpu_list,
    has_hardware_threads,
    numa_cpus,
    numa_distances,
    online_cpus,
    thread_siblings,
)


class Placement(Value):
    """The CPUs of a rank.

    `node`      the CPUs of its node
    `bind`      the CPUs to bind it to, None to keep its mask
    `cpus`      the CPUs that it may run on then
    `threads`   the physical cores that it has for itself, at least 1: OMP_NUM_THREADS
    `warnings`  Problems
    """

    __slots__ = ("bind", "cpus", "node", "threads", "warnings")

    @property
    def numa(self):
        return [number for number, cpus in self.node.numa.items() if cpus & self.cpus]


def choose_cores(node, world, gpu, remedy="give each rank more"):
    """The Placement of the rank of `world` on `node`, a Node, with `gpu`, its Devices.

    `remedy` is how its user gets more of the job's cores.
    """
    job_cpus, bind, faults = _job_cpus(node, world), None, []
    own = world.masks[world.local_rank] if world.masks else ()
    is_known = len(own) == len(node.allowed)  # else they are of another step
    if is_known and any(mask != own for mask in world.masks):
        threads = _own_threads(node, own, world.masks, faults)
    elif world.local_size > 1 and (is_known or _is_everything(node, world, job_cpus)):
        bind, threads = _share(node, world, gpu, faults)
    else:
        threads = _unbound_threads(node, world, job_cpus, faults)
    if world.cpus_per_task is not None:
        threads = min(threads, world.cpus_per_task)
    if faults and len(node.allowed) >= job_cpus and not world.exported:  # the launcher has no more to give
        cores = len(node.cores(node.allowed))
        remedy = f"start at most {cores} rank{'s' * (cores > 1)} per node, or request more cores for the job"
    warnings = [Problem(fault, remedy) for fault in faults]
    return Placement(node=node, bind=bind, cpus=bind or node.allowed, threads=max(1, threads), warnings=warnings)


def _job_cpus(node, world):
    """The number of CPUs that the ranks of this node have together."""
    allowed = len(node.allowed)
    if world.exported or (world.unbound and world.node_cpus is not None and allowed < world.node_cpus):
        # torchrun's workers inherit the mask of their agent. Where Slurm bound no task, it may count CPUs that no task
        # gets (core specialization), and the mask is that of all ranks together.
        return allowed
    if world.node_cpus is not None:
        return world.node_cpus
    # mpirun and its daemons have the job's mask, such as that of PBS or LSF, whatever they bind ranks to
    launcher = node.launcher_cpus() if world.local_size > 1 else None
    return len(launcher or node.online) or allowed


#: Of a Node, the attributes that are read from files.
READERS = {"numa": numa_cpus, "online": online_cpus, "has_threads": has_hardware_threads}


class Node:
    """The CPUs of this node below `root`; each file is read once, when it is needed.

    `allowed`        the affinity mask of this rank, a set of CPUs
    `launcher_cpus`  a function that returns that of the process which started the ranks here, None if not known
    """

    def __init__(self, root, allowed, launcher_cpus=lambda: None):
        self.root = root
        self.allowed = allowed
        self.launcher_cpus = launcher_cpus
        self._core_of = {}  # CPU to the lowest CPU of its core

    def __getattr__(self, name):
        value = READERS[name](self.root)
        setattr(self, name, value)
        return value

    def cores(self, cpus):
        """The cores of `cpus` in order of number, each a list of those of `cpus` that are its threads."""
        if not self.has_threads:
            return [[cpu] for cpu in sorted(cpus)]
        found = {}
        for cpu in sorted(cpus):
            if cpu not in self._core_of:
                siblings = thread_siblings(self.root, cpu)
                self._core_of.update(dict.fromkeys(siblings, min(siblings)))
            found.setdefault(self._core_of[cpu], []).append(cpu)
        return [found[core] for core in sorted(found)]

    def threads_per_core(self, cpu):
        if not self.has_threads:
            return 1
        self.cores({cpu})
        return list(self._core_of.values()).count(self._core_of[cpu])

    def on_numa(self, allowed):
        """The CPUs of `allowed` on each NUMA node that has any; all on node 0 if there are no such nodes."""
        nodes = {number: cpus & allowed for number, cpus in self.numa.items() if cpus & allowed}
        return nodes or {0: set(allowed)}


def _is_everything(node, world, job_cpus):
    """Whether the mask is all that the ranks of this node have together."""
    allowed, count = node.allowed, len(node.allowed)
    if count == job_cpus:
        return True
    if count > job_cpus:
        # Slurm counts cores here; otherwise, without cgroups, the mask is wider than the job
        return len(node.cores(allowed)) == job_cpus
    if node.online and allowed >= node.online:
        return True
    # Slurm counts hardware threads, of which one per core is allowed (srun --threads-per-core=1)
    if count * node.threads_per_core(min(allowed)) != job_cpus or len(node.cores(allowed)) != count:
        return False
    # two ranks, each bound to half of the job, look the same unless fewer CPUs were requested
    return world.local_size * count > job_cpus or (world.cpus_per_task is not None and world.cpus_per_task < count)


def _own_threads(node, own, masks, faults):
    """The cores that one rank has of `own` among the `masks` of all ranks of the node, which differ."""
    ranks, cores = sum(mask <= own for mask in masks), len(node.cores(node.allowed))
    if ranks > cores:
        faults.append(_describe_sharing(ranks, cores, node.allowed))
    return cores // ranks


def _unbound_threads(node, world, job_cpus, faults):
    """The cores that one rank has of a mask that is kept.

    `local_size` masks of this size hold each of the job's CPUs so many times that dividing by it gives
    one rank's part of its mask. Where a mask is larger than the job, the same division leaves the job's
    part of it to all ranks.
    """
    allowed, local_size, cores = node.allowed, world.local_size, len(node.cores(node.allowed))
    if world.cpus_per_task in (cores, len(allowed)):
        return cores  # a mask that Slurm set for this rank
    sharers = -(-local_size * len(allowed) // max(job_cpus, len(allowed)))
    if cores < sharers:
        faults.append(_describe_sharing(sharers, cores, allowed))
    return min(cores, cores * job_cpus // (len(allowed) * local_size))


def _share(node, world, devices, faults):
    """The CPUs of this rank's share of its mask, None to bind nothing, and its number of cores."""
    allowed, local_size = node.allowed, world.local_size
    if devices.count and not devices.held:
        return None, len(node.cores(allowed)) // local_size
    cores = None
    if devices.held and devices.candidate_gpus is None:
        near = _near_unknown_others(node, allowed, devices)
        if near:
            return near
    elif devices.held:
        cores = _gpu_share(node, allowed, devices)
        sharers, index = devices.sharers, devices.share_index
    if cores is None:
        cores = [core for cpus in node.on_numa(allowed).values() for core in node.cores(cpus)]
        sharers, index = local_size, world.local_rank
    if len(cores) < sharers:
        faults.append(_describe_sharing(sharers, len(cores), {cpu for core in cores for cpu in core}))
        cores = [cores[index % len(cores)]]
    else:
        cores = _cut(cores, sharers, index)
    return {cpu for core in cores for cpu in core}, len(cores)


def _near_unknown_others(node, allowed, devices):
    """All allowed CPUs of the NUMA node of this rank's GPU, and its part of the cores; None if there are none."""
    nodes = node.on_numa(allowed)
    number = devices.gpu.numa_node
    if number not in nodes:
        return None
    own = sum(gpu.numa_node == number for gpu in devices.held)
    here = sum(gpu.numa_node == number for gpu in all_gpus(node.root, devices.vendor))
    return nodes[number], len(node.cores(nodes[number])) * own // max(own, here)


def _gpu_share(node, allowed, devices):
    """The cores of the GPUs of `devices.held`; None unless every candidate GPU has cores of its own.

    The cores of a NUMA node are cut among its candidate GPUs. A NUMA node without any GPU lends its
    cores to the nearest one with a candidate, where they are cut in the same way.
    """
    nodes = node.on_numa(allowed)
    homes = {}
    for gpu in devices.candidate_gpus:
        if gpu.numa_node not in nodes:
            return None
        homes.setdefault(gpu.numa_node, []).append(gpu)
    lenders = _lenders(node, nodes, homes, devices)

    cores = []
    for gpu in devices.held:
        local = homes[gpu.numa_node]
        for number in (gpu.numa_node, *lenders[gpu.numa_node]):
            cores += _cut(node.cores(nodes[number]), len(local), local.index(gpu))
    # A GPU without cores would take some of another GPU's: then no rank is placed by its GPU.
    threads = node.threads_per_core(min(allowed))
    for number, local in homes.items():
        # if there are enough threads for full cores, no file is read
        if len(nodes[number]) < threads * len(local) and len(node.cores(nodes[number])) < len(local):
            return None
    return cores


def _lenders(node, nodes, homes, devices):
    """The NUMA nodes that lend their cores to each of `homes`, the nodes with candidate GPUs."""
    others = [number for number in nodes if number not in homes]
    if not others:
        return dict.fromkeys(homes, ())
    candidates = {gpu.location for gpu in devices.candidate_gpus}
    unused = {gpu.numa_node for gpu in all_gpus(node.root, devices.vendor) if gpu.location not in candidates}
    lenders = {home: [] for home in homes}
    for number in others:
        if number not in unused:
            distances = numa_distances(node.root, number, list(node.numa))
            _, _, nearest = min((distances[home], len(lenders[home]), home) for home in homes)
            lenders[nearest].append(number)
    return lenders


def _cut(cores, pieces, number):
    """Piece `number` of `cores` cut into contiguous `pieces` of nearly the same length."""
    return cores[len(cores) * number // pieces : len(cores) * (number + 1) // pieces]


def _describe_sharing(ranks, cores, cpus):
    shared = f"{cores} core{'s' * (cores > 1)} on this node, CPUs {cpu_list(cpus)}"
    return f"{ranks} ranks share {shared}, and take turns on them"

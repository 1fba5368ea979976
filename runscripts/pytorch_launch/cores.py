# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the CPU cores of a rank, those nearest to its GPU.

A mask of this rank's own, from the user, Slurm or mpirun, is kept. A mask that all ranks of the node have
in common is cut into shares, identically on every rank, without communication.
"""

from pytorch_launch import Problem, Value
from pytorch_launch.topology import cpu_list


class Placement(Value):
    """The CPUs of a rank.

    `node`      the Node
    `bind`      the CPUs to bind it to, None to keep its mask
    `threads`   the physical cores that it has for itself, at least 1: OMP_NUM_THREADS
    `warnings`  Problems
    """

    @property
    def cpus(self):
        """The CPUs that it may run on."""
        return self.bind or self.node.allowed

    @property
    def numa(self):
        return [number for number, cpus in self.node.numa.items() if cpus & self.cpus]


def choose_cores(node, world, gpu, remedy="give each rank more"):
    """The Placement of the rank of `world` on `node`, a Node, with `gpu`, its Devices.

    `remedy` is how its user gets more of the job's cores.
    """
    allowed, count, bind = node.allowed, len(node.allowed), None
    job_cpus = _job_cpus(node, world)
    own = world.masks[world.local_rank] if world.masks else ()
    is_known = len(own) == count  # else they are of another step
    is_common = all(mask == own for mask in world.masks) if is_known else _is_everything(node, world, job_cpus)
    if is_common and world.local_size > 1:
        bind, threads, faults = _share(node, world, gpu)
    else:
        cores, of_job = len(node.cores(allowed)), min(job_cpus, count)  # a mask may be wider than the job
        if world.cpus_per_task in (cores, count):
            of_job = count  # a mask that Slurm set for this rank
        if is_known:
            sharers = sum(mask <= own for mask in world.masks)
        elif world.cpus_per_task in (cores, count):
            sharers = 1
        else:  # `local_size` masks of this size hold each of the job's CPUs so many times
            sharers = -(-world.local_size * count // max(job_cpus, count))
        threads, faults = cores * of_job // (count * sharers), _crowd(node, sharers, allowed)
    if world.cpus_per_task is not None:
        threads = min(threads, world.cpus_per_task)
    if faults and count >= job_cpus and not world.exported:  # the launcher has no more to give
        cores = len(node.cores(allowed))
        remedy = f"start at most {cores} rank{'s' * (cores > 1)} per node, or request more cores for the job"
    warnings = [Problem(fault, remedy) for fault in faults]
    return Placement(node=node, bind=bind, threads=max(1, threads), warnings=warnings)


def _job_cpus(node, world):
    """The number of CPUs that the ranks of this node have together."""
    allowed = len(node.allowed)
    if world.exported:  # torchrun's workers inherit the mask of their agent, but with --numa-binding
        return max(allowed, world.node_cpus or 0)
    if world.node_cpus is not None:
        # Where Slurm bound no task, it may count CPUs that no task gets (core specialization), and the mask is that of
        # all ranks together.
        return min(allowed, world.node_cpus) if world.unbound else world.node_cpus
    # mpirun and its daemons have the job's mask, such as that of PBS or LSF, whatever they bind ranks to
    launcher = node.launcher_cpus if world.local_size > 1 else None
    return len(launcher or node.online) or allowed


def _is_everything(node, world, job_cpus):
    """Whether the mask is all that the ranks of this node have together."""
    allowed, count = node.allowed, len(node.allowed)
    if count >= job_cpus or (node.online and allowed >= node.online):
        # Slurm may count cores; otherwise, without cgroups, a wider mask is wider than the job
        return count <= job_cpus or len(node.cores(allowed)) == job_cpus
    # Slurm counts hardware threads, of which one per core is allowed (srun --threads-per-core=1)
    if count * len(node.threads(min(allowed))) != job_cpus or len(node.cores(allowed)) != count:
        return False
    # two ranks, each bound to half of the job, look the same unless fewer CPUs were requested
    return world.local_size * count > job_cpus or (world.cpus_per_task or count) < count


def _share(node, world, devices):
    """The CPUs of this rank's share of its mask, None to bind nothing, its number of cores, and faults."""
    nodes, faults = node.on_numa(node.allowed), []
    if devices.count and not devices.held:
        return None, len(node.cores(node.allowed)) // world.local_size, []
    number = devices.gpu.numa_node if devices.held else None
    if devices.claims is None and number in nodes:  # not known which other GPUs the ranks have
        own, here = (sum(gpu.numa_node == number for gpu in gpus) for gpus in (devices.held, node.all_gpus))
        return nodes[number], len(node.cores(nodes[number])) * own // max(own, here), []
    cores = _near_gpus(node, nodes, devices) if devices.claims else None
    if cores is None:
        cores = [core for cpus in nodes.values() for core in node.cores(cpus)]
        faults = _crowd(node, world.local_size, node.allowed)
        own = [cores[world.local_rank % len(cores)]] if faults else None
        cores = own or _cut(cores, world.local_size, world.local_rank)
    return {cpu for core in cores for cpu in core}, len(cores), faults


def _near_gpus(node, nodes, devices):
    """The cores of the claims of this rank; None unless every claim has cores of its own.

    The cores of a NUMA node are cut among the claims of its GPUs. A NUMA node without any GPU lends its cores to the
    nearest one with a claim, where they are cut in the same way.
    """
    homes, cores = {}, []
    for position, gpu in enumerate(devices.claims):
        homes.setdefault(gpu.numa_node, []).append(position)
    threads = len(node.threads(min(node.allowed)))
    for number, local in homes.items():
        cpus = nodes.get(number, ())
        # if there are enough threads for full cores, no file is read
        if len(cpus) < threads * len(local) and len(node.cores(cpus)) < len(local):
            return None
    lenders, others = {home: [home] for home in homes}, [number for number in nodes if number not in homes]
    unused = {gpu.numa_node for gpu in node.all_gpus if gpu not in devices.claims} if others else ()
    for number in others:
        if number not in unused:
            distances = node.distances(number)
            lenders[min(homes, key=lambda home: (distances.get(home, 0), len(lenders[home]), home))].append(number)
    for position in devices.own:
        home = devices.claims[position].numa_node
        for number in lenders[home]:
            cores += _cut(node.cores(nodes[number]), len(homes[home]), homes[home].index(position))
    return cores


def _cut(cores, pieces, number):
    """Piece `number` of `cores` cut into contiguous `pieces` of nearly the same length."""
    return cores[len(cores) * number // pieces : len(cores) * (number + 1) // pieces]


def _crowd(node, ranks, cpus):
    """A list of faults: `ranks` ranks have fewer cores together, those of `cpus`."""
    cores = len(node.cores(cpus))
    if ranks <= cores:
        return []
    shared = f"{cores} core{'s' * (cores > 1)} on this node, CPUs {cpu_list(cpus)}"
    return [f"{ranks} ranks share {shared}, and take turns on them"]

# SPDX-License-Identifier: BSD-3-Clause
"""Chooses the CPU cores of a rank, those nearest to its GPU.

A mask of this rank's own, from the user, Slurm or mpirun, is kept. A mask that all ranks of the node have
in common is cut into shares, identically on every rank, without communication.
"""

from pytorch_launch import Problem, Record
from pytorch_launch.topology import cpu_list


class Placement(Record):
    """The CPUs of a rank.

    `cpus`      the CPUs that it may run on
    `bind`      the same if this process must be bound to them, None to keep its mask
    `threads`   the physical cores that it has for itself, at least 1: OMP_NUM_THREADS
    `numa`      the numbers of their NUMA nodes
    `warnings`  Problems
    """

    fields = "cpus bind threads numa warnings"


class Share(Record):
    """The CPUs to bind a rank to, or None; its number of cores; and what is wrong with them, or None."""

    fields = "bind threads fault"


def choose_cores(node, world, devices, remedy="give each rank more"):
    """The Placement of the rank of `world` on `node`, a Node, with `devices`, its Devices.

    `remedy` is how its user gets more of the job's cores.
    """
    job_cpus = _job_cpus(node, world)
    if world.local_size > 1 and _is_common(node, world, job_cpus):
        share = _share(node, world, devices)
    else:
        share = _keep(node, world, devices, job_cpus)
    threads = min(share.threads, world.cpus_per_task or share.threads)
    warnings = []
    if share.fault:
        if len(node.allowed) >= job_cpus and not world.exported:  # the launcher has no more to give
            remedy = "start fewer ranks per node, or request more cores for the job"
        warnings.append(Problem(share.fault, remedy))
    cpus = share.bind or node.allowed
    numa = [number for number, own in node.numa.items() if own & cpus]
    return Placement(cpus, share.bind, max(1, threads), numa, warnings)


def _job_cpus(node, world):
    """The number of CPUs that the ranks of this node have together."""
    allowed = len(node.allowed)
    if world.exported:  # torchrun's workers inherit the mask of their agent, but with --numa-binding
        return max(allowed, world.node_cpus or 0)
    if world.node_cpus is None:
        # mpirun and its daemons have the job's mask, such as that of PBS or LSF, whatever they bind ranks to
        return len(node.launcher_cpus or node.online) or allowed
    if world.unbound:
        # Slurm may count CPUs that no task gets (core specialization), and the mask is that of all ranks together
        return min(allowed, world.node_cpus)
    return world.node_cpus


def _own_mask(node, world):
    """The mask of this rank that Slurm reports, None if it reports none, or one of another step."""
    if not world.masks or len(world.masks[world.local_rank]) != len(node.allowed):
        return None
    return world.masks[world.local_rank]


def _is_common(node, world, job_cpus):
    """Whether all ranks of this node have the mask of this one."""
    allowed = node.allowed
    count = len(allowed)
    own = _own_mask(node, world)
    if own is not None:
        return all(mask == own for mask in world.masks)
    if count >= job_cpus or (node.online and allowed >= node.online):
        # Slurm may count cores; otherwise, without cgroups, a wider mask is wider than the job
        return count <= job_cpus or len(node.cores(allowed)) == job_cpus
    # Slurm counts hardware threads, of which one per core is allowed (srun --threads-per-core=1)
    if count * len(node.threads(min(allowed))) != job_cpus or len(node.cores(allowed)) != count:
        return False
    # two ranks, each bound to half of the job, look the same unless fewer CPUs were requested
    return world.local_size * count > job_cpus or (world.cpus_per_task or count) < count


def _keep(node, world, devices, job_cpus):
    """The Share of a rank that keeps its mask."""
    count = len(node.allowed)
    cores = len(node.cores(node.allowed))
    of_job = min(job_cpus, count)  # a mask may be wider than the job
    # `local_size` masks of this size hold each of the job's CPUs so many times
    sharers = -(-world.local_size * count // max(job_cpus, count))
    if world.cpus_per_task in (cores, count):  # a mask that Slurm set for this rank
        of_job = count
        sharers = 1
    own = _own_mask(node, world)
    if own is not None:
        sharers = sum(mask <= own for mask in world.masks)
    fault = _crowding(node, sharers, node.allowed) or _unasked_binding(node, world, devices, job_cpus)
    return Share(None, cores * of_job // (count * sharers), fault)


def _unasked_binding(node, world, devices, job_cpus):
    """What is wrong with a mask that the launcher chose by itself, None if nothing is, or the user chose it."""
    if not world.binds_by_default or len(node.allowed) >= job_cpus:
        return None
    bound = f"{world.source} binds this rank to {_cpus(node.allowed)}"
    near = node.numa.get(devices.gpu.numa_node) if devices.gpu else None
    if near and not near & node.allowed:
        return f"{bound}, and its GPU is near {_cpus(near)}"
    if len(node.cores(node.allowed)) == 1 and world.local_size * len(node.allowed) < job_cpus:
        return f"{bound}, one core"
    return None


def _share(node, world, devices):
    """The Share of a rank whose mask all ranks of its node have."""
    nodes = node.on_numa(node.allowed)
    if devices.count and not devices.held:  # it is not known where its GPU is
        return Share(None, len(node.cores(node.allowed)) // world.local_size, None)
    if devices.held and devices.claims is None and devices.gpu.numa_node in nodes:
        return _share_of_numa_node(node, devices, nodes[devices.gpu.numa_node])
    near = _near_gpus(node, nodes, devices) if devices.claims else None
    if near is not None:
        return _make_share(near)
    cores = [core for cpus in nodes.values() for core in node.cores(cpus)]
    fault = _crowding(node, world.local_size, node.allowed)
    if fault:
        return _make_share([cores[world.local_rank % len(cores)]], fault)
    return _make_share(_cut(cores, world.local_size, world.local_rank))


def _make_share(cores, fault=None):
    return Share({cpu for core in cores for cpu in core}, len(cores), fault)


def _share_of_numa_node(node, devices, cpus):
    """The Share of a rank that has GPUs on a NUMA node with `cpus`, where other ranks may have the others."""
    number = devices.gpu.numa_node
    own = sum(gpu.numa_node == number for gpu in devices.held)
    here = sum(gpu.numa_node == number for gpu in node.all_gpus)
    return Share(cpus, len(node.cores(cpus)) * own // max(own, here), None)


def _near_gpus(node, nodes, devices):
    """The cores of the claims of this rank; None unless every claim has cores of its own.

    The cores of a NUMA node are cut among the claims of its GPUs. A NUMA node without any GPU lends its cores to the
    nearest one with a claim, where they are cut in the same way.
    """
    homes = {}  # NUMA node to the positions of its claims
    for position, gpu in enumerate(devices.claims):
        homes.setdefault(gpu.numa_node, []).append(position)
    if any(len(node.cores(nodes.get(home, ()))) < len(homes[home]) for home in homes):
        return None
    lenders = _lenders(node, nodes, homes)
    cores = []
    for position in devices.own:
        home = devices.claims[position].numa_node
        for number in lenders[home]:
            cores += _cut(node.cores(nodes[number]), len(homes[home]), homes[home].index(position))
    return cores


def _lenders(node, nodes, homes):
    """For each NUMA node with a claim the nodes whose cores its claims get: itself, and those without a GPU nearby."""
    lenders = {home: [home] for home in homes}
    with_gpus = {*homes, *(gpu.numa_node for gpu in node.all_gpus)}
    for number in nodes:
        if number not in with_gpus:
            distances = node.distances.get(number, {})
            nearest = min(homes, key=lambda home: (distances.get(home, 0), len(lenders[home]), home))  # noqa: B023
            lenders[nearest].append(number)
    return lenders


def _cut(cores, pieces, number):
    """Piece `number` of `cores` cut into contiguous `pieces` of nearly the same length."""
    return cores[len(cores) * number // pieces : len(cores) * (number + 1) // pieces]


def _crowding(node, ranks, cpus):
    """What is wrong if `ranks` ranks have fewer cores together, those of `cpus`; None if they have enough."""
    if ranks <= len(node.cores(cpus)):
        return None
    return f"{ranks} ranks share the cores of {_cpus(cpus)} on this node"


def _cpus(cpus):
    return f"CPUs {cpu_list(cpus)}"

"""All that is decided for one rank; called by `launch` and `elastic`.

Between the pure modules and the edge: it hands them the environment and asks the kernel for what is not
in there, namely this host's name, this process's CPUs, user and launcher.
"""

import posix

from pytorch_launch import caches, cores, devices
from pytorch_launch.environment import variables
from pytorch_launch.isolation import isolate, shadowing
from pytorch_launch.launchers import binding, discover
from pytorch_launch.rendezvous import RendezvousError, check_claim, check_free, launch_id, rendezvous
from pytorch_launch.topology import cpu_list, read
from pytorch_launch.world import VIRTUAL

LOCAL_RANK_HINT = (
    "each rank sees its own GPU only, so its device is cuda:0 and not cuda:LOCAL_RANK: use LOCAL_RANK % "
    "torch.cuda.device_count(), or conda-python-distributed --virtual-local-rank"
)


class Rank:
    """One rank: `env`, `world`, `devices`, `cpus`; after `decide` also what follows.

    `placement`  as `cores.place` returns it
    `caches`     the directory of the caches, None without one
    `changes`    variables to set before Python starts, None for one to be taken away
    `warnings`   sentences for people, already none where another rank says the same
    Raises LaunchError, as do its methods.
    """

    def __init__(self, env, *, virtual=False):
        self.env = env
        self.virtual = virtual or bool(env.get(VIRTUAL))
        self.world = discover(env, posix.uname().nodename)
        self.speaks_for_node = self.world.local_rank == 0
        self.devices = devices.choose(env, "", self.world.local_rank, self.world.local_size)
        self.cpus = posix.sched_getaffinity(0)
        self.placement = self.caches = None
        self.changes, self.warnings = {}, []

    def check_meeting_point(self):
        """Claim the port where the ranks will meet; raise RendezvousError if another process has it.

        A world of one has no rank to lose, and may be a program that such a rank 0 started.
        """
        world = self.world
        if world.size == 1 or world.exported or (world.node_rank != 0 and world.rank != 0):
            return
        place = rendezvous(self.env, world, self.origin)
        check_claim(place, world, launch_id(world, self.origin))
        if world.rank == 0:
            check_free(place, world.source)

    def decide(self, *, create=True):
        """Decide everything; with `create` make the directories of the caches."""
        world = self.world
        node_cpus = world.node_cpus
        if world.exported or (world.unbound and node_cpus is not None and len(self.cpus) < node_cpus):
            # torchrun's workers inherit the mask of their agent; and where Slurm bound nobody, it may count
            # CPUs that no task gets (core specialization): the mask is all that the ranks have together
            node_cpus = len(self.cpus)
        self.placement = cores.place(
            "", self.cpus, world.local_rank, world.local_size, node_cpus, world.cpus_per_task, self.devices,
            binding(self.env),
        )  # fmt: skip
        decided = variables(
            self.env, world, threads=self.placement.threads, devices=self.devices, origin=self.origin
        )
        if self.virtual:
            decided["LOCAL_RANK"] = "0"
            decided[VIRTUAL] = "1"
            decided.update(self.devices.narrowed())
        key = f"{'local' if world.job is None else world.job}-{world.node}"
        self.caches, places, of_caches = caches.place(self.env, posix.geteuid(), key, create=create)
        isolated, of_isolation = isolate(self.env)
        decided.update(places)
        decided.update(isolated)
        self.changes = {name: value for name, value in decided.items() if self.env.get(name) != value}
        if self.speaks_for_node:
            self.warnings += [*of_caches, *self.placement.warnings, *self.devices.warnings]
        if world.rank == 0:
            self.warnings += [*of_isolation, *shadowing(self.env)]
        if world.rank == 1 and not self.devices.local_rank_is_index and not self.virtual:
            self.warnings.append(LOCAL_RANK_HINT)

    def warn_if_alone(self, nodes_only=False):
        """Warn of a process that is alone in its allocation; `nodes_only` if it starts all ranks of its node."""
        tasks, nodes = self.world.allocation
        if nodes > 1 or (tasks > 1 and not nodes_only):
            count = f"{tasks} tasks" if tasks > 1 and not nodes_only else f"{nodes} nodes"
            self.warnings.append(f"one process alone in an allocation of {count}: to use all of it, start it with srun")

    def bind(self):
        """Bind this process, and so Python, to the CPUs that were chosen."""
        if self.placement.bind is None:
            return
        try:
            posix.sched_setaffinity(0, self.placement.bind)
        except OSError as error:
            cpus = cpu_list(self.placement.bind)
            self.warnings.append(f"cannot bind to CPUs {cpus}: {error.strerror}; goes on without")

    def origin(self):
        """The number of the process that started the world on this node; of this one if it is alone.

        MPICH gives every rank a session of its own (setsid(2)), in which a container may have put
        processes before this one; the parent of the session's leader is the launcher.
        """
        if self.world.size == 1:
            return posix.getpid()
        stat = read(f"/proc/{posix.getsid(0)}/stat")  # 0 for a leader in another process namespace
        if stat is None:
            raise RendezvousError(
                f"{self.world.source} gives its ranks nothing to choose a port by, and this container hides it: export "
                "MASTER_PORT before it, or leave out --pid and --containall"
            )
        return int(stat.rpartition(")")[2].split()[1])

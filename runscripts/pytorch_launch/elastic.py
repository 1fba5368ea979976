"""torchrun on each node of a world with one task per node; called by `launch`."""

import sys

from pytorch_launch import LaunchError
from pytorch_launch.caches import SUBDIRECTORIES
from pytorch_launch.environment import AGENT_THREADS, LAUNCH_ID
from pytorch_launch.launchers import one_task_per_node
from pytorch_launch.rank import Rank
from pytorch_launch.rendezvous import launch_id, rendezvous

# torchrun starts each worker with it: so a worker is bound and isolated like any rank. Two directories above the file
# of `__main__`, as this module may be in an archive.
WORKER = sys.argv[0].rsplit("/", 2)[0] + "/conda-python-distributed"

OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


class AgentError(LaunchError):
    """Tasks that cannot be agents of torchrun."""


class Agent:
    """The agent of torchrun on one node: `rank`, its `arguments` for Python, and `changes` of the environment.

    `rank` is the agent's among the agents, so the world's size is the number of nodes.
    Raises AgentError and whatever Rank raises.
    """

    def __init__(self, env):
        self.rank = Rank(env)
        world = self.rank.world
        if world.exported:
            raise AgentError(f"this is a worker of {world.source} already: use conda-python-distributed")
        if world.local_size != 1:
            raise AgentError(
                f"{world.source} has {world.local_size} tasks on {world.node}, and torchrun starts the ranks of a "
                f"node by itself: start one task per node, as {one_task_per_node(env)} torchrun-distributed"
            )
        self.rank.decide(create=False)
        self.arguments = self._torchrun(env, world)
        self.changes = self._environment(env)

    def _torchrun(self, env, world):
        """torchrun(1)'s options; what the user adds comes later and wins."""
        place = rendezvous(env, world, self.rank.origin)
        address = place["MASTER_ADDR"]
        endpoint = f"[{address}]" if ":" in address else address
        return [
            *("-m", "torch.distributed.run"),
            f"--nnodes={world.size}",
            f"--nproc-per-node={max(1, self.rank.devices.count)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}:{place['MASTER_PORT']}",
            f"--rdzv-id={launch_id(world, self.rank.origin) or 'local'}",
            # said, as torchrun would compare host names, which may have several spellings (pytorch#73656)
            f"--rdzv-conf=is_host={'true' if world.rank == 0 else 'false'}",
            # or the address would come from a reverse look-up of this host's name
            f"--local-addr={world.node if world.size > 1 else address}",
        ]

    def _environment(self, env):
        """What differs for the agent: torchrun sets the ranks' variables, and each worker makes its own caches."""
        ranks = {*self.rank.world.variables(), "MASTER_ADDR", "MASTER_PORT", LAUNCH_ID}
        workers = ranks.union(SUBDIRECTORIES)
        changes = {name: value for name, value in self.rank.changes.items() if name not in workers}
        changes["PYTHON_EXEC"] = WORKER
        # A store for each start of the workers. In a shared one they look for each other under their agent's
        # number of restarts, which differs between nodes when one of them saw the fault first, and the restarted
        # world never comes together (seen with torch 2.13; `test_a_worker_of_torchrun_that_is_killed...` fails then).
        changes[OWN_STORE] = env.get(OWN_STORE) or "1"
        if "OMP_NUM_THREADS" in changes:
            changes[AGENT_THREADS] = changes["OMP_NUM_THREADS"]
        # of the rendezvous, or of nobody: torchrun sets its own
        changes.update({name: None for name in ranks if env.get(name)})
        return changes

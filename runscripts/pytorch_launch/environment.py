"""The variables with which one rank starts Python; called by `launch`."""

from pytorch_launch.rendezvous import rendezvous
from pytorch_launch.topology import threads_per_rank


def variables(env, world, *, mask_cpus, node_cpus, pid):
    """torch's variables for a rank of `world`, name to value.

    What `env` has exported stays as it is. `mask_cpus` is the number of CPUs this process may run
    on, `node_cpus` the number in the node, `pid` its process number. Raises RendezvousError.
    """
    if world.exported:
        return {}
    threads = threads_per_rank(mask_cpus, world.node_cpus or node_cpus, world.local_size, world.cpus_per_task)
    return {
        **world.variables(),
        **rendezvous(env, world, pid),
        "OMP_NUM_THREADS": env.get("OMP_NUM_THREADS") or str(threads),
    }

"""The variables with which one rank starts Python; called by `launch`."""

from pytorch_launch.rendezvous import launch_id, rendezvous

# What a module sets for some worlds alone stands behind these, as it cannot know the world when it is
# loaded: PYTORCH_MULTI_NODE_NCCL_NET becomes NCCL_NET where the ranks are on more than one node.
MULTI_NODE = "PYTORCH_MULTI_NODE_"
DISTRIBUTED = "PYTORCH_DISTRIBUTED_"

# The threads that `torchrun-distributed` exported, so that its workers know them from the user's.
AGENT_THREADS = "PYTORCH_LAUNCH_AGENT_THREADS"

# The name of this launch, by which a program can tell at the rendezvous that a rank is of another one.
LAUNCH_ID = "PYTORCH_LAUNCH_ID"


def variables(env, world, *, threads, devices, origin):
    """The variables of a rank of `world`, name to value; None is for a variable to be taken away.

    What `env` has exported stays as it is. `threads` is the number of physical cores that the rank has,
    `devices` what `devices.choose` returned, `origin` as in `rendezvous`. Raises RendezvousError.
    """
    decided = dict(devices.changes)
    decided.update(conditional(env, world))
    if not world.exported:
        decided.update(world.variables())
        decided.update(rendezvous(env, world, origin))
        if world.size > 1:
            decided[LAUNCH_ID] = launch_id(world, origin)
    exported = env.get("OMP_NUM_THREADS")
    if not exported or exported == env.get(AGENT_THREADS):
        decided["OMP_NUM_THREADS"] = str(threads)
    if AGENT_THREADS in env:
        decided[AGENT_THREADS] = None
    return decided


def is_name(text):
    """Whether a shell can have a variable of this name; env(1) sets others as well."""
    return text.isascii() and text.isidentifier()


def conditional(env, world):
    """The module's variables for a world like this one, unless the user has exported them."""
    prefixes = []
    if world.size > 1:
        prefixes.append(DISTRIBUTED)
    if world.local_size < world.size:
        prefixes.append(MULTI_NODE)
    return {
        name[len(prefix) :]: value
        for prefix in prefixes
        for name, value in env.items()
        if name.startswith(prefix) and is_name(name[len(prefix) :]) and name[len(prefix) :] not in env
    }

"""The line that says what was decided for one rank and why; called by `launch` on demand."""

# What a user may export to overrule a decision.
OVERRULED = ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")


def line(world, before, after, cpus, caches):
    """What was decided for a rank, as one line.

    `before` is the environment it was launched with, `after` the one that Python gets, `cpus` the
    numbers of the CPUs it may run on, `caches` the directory of its caches, None without one.
    """
    overruled = [name for name in OVERRULED if before.get(name)]
    return (
        f"{world.node}: rank {world.rank} of {world.size}, "
        f"local rank {world.local_rank} of {world.local_size}, node rank {world.node_rank}, "
        f"master {after.get('MASTER_ADDR')}:{after.get('MASTER_PORT')}, from {world.source}; "
        f"cores {core_list(cpus)}, OMP_NUM_THREADS {after.get('OMP_NUM_THREADS', 'not set')}; "
        f"caches in {caches or 'their default places'}; "
        f"exported before: {', '.join(overruled) or 'nothing'}"
    )


def core_list(cpus):
    """CPU numbers in the kernel's list format: {0, 1, 2, 8} is `0-2,8`."""
    runs = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if low < high else f"{low}" for low, high in runs)

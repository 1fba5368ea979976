"""What of a node's hardware belongs to one rank; called by `environment`."""


def threads_per_rank(mask_cpus, node_cpus, local_size, cpus_per_task=None):
    """The number of threads that keep a rank on its own CPUs: `OMP_NUM_THREADS`.

    A rank bound to some CPUs (`mask_cpus`, the size of its affinity mask) uses those. A mask that
    holds all `node_cpus`, the CPUs that the `local_size` ranks of the node have together, is no
    binding: each rank gets an equal share, or a ratio of four in throughput is lost to threads
    that fight for cores. What the user asked for (`cpus_per_task`, `srun -c`) is never exceeded.
    """
    share = mask_cpus if mask_cpus < node_cpus else node_cpus // local_size
    if cpus_per_task is not None:
        share = min(share, cpus_per_task)
    return max(1, share)

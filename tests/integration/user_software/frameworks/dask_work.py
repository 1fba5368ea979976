"""Tasks for workers of dask-jobqueue, which import the module's torch."""

import os

from dask.distributed import Client
from dask_jobqueue import SLURMCluster


def work(number):
    import torch

    return float(torch.ones(2).sum() * number)


if __name__ == "__main__":
    cluster = SLURMCluster(
        cores=1,
        memory="1GB",
        python=os.environ["CONTAINERROOT"] + "/bin/conda-python-simple",
        job_script_prologue=["unset APPTAINER_BIND SINGULARITY_BIND"],
    )
    cluster.scale(jobs=2)
    with Client(cluster) as client:
        client.wait_for_workers(2, timeout=300)
        print("results", client.gather(client.map(work, range(4))))

"""A script for Hydra's submitit launcher: each rank prints the sum of all ranks."""

import os
import sys

import hydra

sys.executable = os.environ["CONTAINERROOT"] + "/bin/conda-python-distributed"
for name in ("APPTAINER_BIND", "SINGULARITY_BIND"):
    os.environ.pop(name, None)


@hydra.main(version_base="1.3", config_path=None)
def main(config):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    ranks = torch.tensor(dist.get_rank())
    dist.all_reduce(ranks)
    print(f"seed {config.seed}: rank {dist.get_rank()} of {dist.get_world_size()}, sum {ranks.item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

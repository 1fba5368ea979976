#!/bin/bash
# DistributedDataParallel on 2 nodes of Perlmutter, from the module: sbatch -A <account> submit_batch_modules.sh
#SBATCH -C gpu
#SBATCH -q debug
#SBATCH -t 00:10:00
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH -J dl-test
#SBATCH -o module_job_log_%j.out
set -e

module load PyTorch/2.15.0-cuda-13.2-perlmutter-venv
# NCCL's plugin for Slingshot, without which ranks on several nodes stop: the default, or one for CUDA 13 by its version
module load nccl
module load MNIST

srun conda-python-distributed -u "$PAYLOAD/mnist_ddp.py" --gpu --modelpath "model-$SLURM_JOB_ID"

# The same with the variables in the shell, as with NERSC's export_DDP_vars.sh:
# srun bash -c 'source <(ddp-env) && python -u "$PAYLOAD/mnist_ddp.py" --gpu'

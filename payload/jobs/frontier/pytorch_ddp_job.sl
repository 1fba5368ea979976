#!/bin/bash
# DistributedDataParallel on 2 nodes of Frontier, one rank per GPU (GCD), 16 in all:
#   mkdir -p logs; sbatch --export=NONE -A <project> pytorch_ddp_job.sl
# Only for Frontier.
#SBATCH -J pytorch_ddp
#SBATCH -o logs/pytorch_tutorial-%j.o
#SBATCH -e logs/pytorch_tutorial-%j.e
#SBATCH -t 00:10:00
#SBATCH -p batch
#SBATCH -N 2
#SBATCH --network=disable_rdzv_get
set -e

# srun would keep --export=NONE for its tasks, and what the modules set from them
unset SLURM_EXPORT_ENV

# With --export=NONE no module is loaded here; without, keep the PyTorch module that is
[ -n "$PAYLOADPYTORCH" ] || module load PyTorch/2.10.0-rocm-7.1-venv
module load rccl-net-plugin # RCCL's way to Slingshot, without which ranks on several nodes stop
# Without the data's module, the training generates digits
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi
# cpe/26.03, which the first loads, is not the default
export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# srun starts the ranks, not torchrun: it gives each the one GPU nearest to its seven cores.
srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest \
  conda-python-distributed -u "$PAYLOAD/mnist_ddp.py" --gpu --modelpath "model-$SLURM_JOB_ID" "$@"

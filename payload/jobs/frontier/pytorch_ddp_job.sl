#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
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
unset SLURM_EXPORT_ENV # otherwise srun applies --export=NONE to its tasks too, and they lose what the modules set

# --export=NONE starts without modules; without that option, keep the PyTorch module that is loaded
[ -n "$PAYLOADPYTORCH" ] || module load PyTorch/2.10.0-rocm-7.1-venv
module load rccl-net-plugin # RCCL's plugin for Slingshot; without it, ranks on several nodes exit
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi # without it: generated digits
# cpe/26.03, which the PyTorch module loads, is not the default
export LD_LIBRARY_PATH="$CRAY_LD_LIBRARY_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# Submit again to resume; options that differ need --restart, which begins anew
output=$SLURM_SUBMIT_DIR/outputs/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
# srun starts the ranks and gives each the GPU nearest to its seven cores.
srun -N2 -n16 -c7 --gpus-per-task=1 --gpu-bind=closest \
  conda-python-distributed -u "$PAYLOAD/mnist_ddp.py" --gpu --modelpath "$output" "$@"

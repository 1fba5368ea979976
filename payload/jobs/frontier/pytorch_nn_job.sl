#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# A small network that needs no data, in one process on one node of Frontier:
#   mkdir -p logs; sbatch --export=NONE -A <project> pytorch_nn_job.sl
# Only for Frontier.
#SBATCH -J pytorch_nn
#SBATCH -o logs/pytorch_tutorial-%j.o
#SBATCH -e logs/pytorch_tutorial-%j.e
#SBATCH -t 00:10:00
#SBATCH -p batch
#SBATCH -N 1
set -e
unset SLURM_EXPORT_ENV # otherwise srun applies --export=NONE to its tasks too, and they lose what the modules set

# --export=NONE starts without modules; without that option, keep the PyTorch module that is loaded
[ -n "$PAYLOADPYTORCH" ] || module load PyTorch/2.10.0-rocm-7.1-venv
echo "Python Environment Path: $(which python)"

srun -N1 -n1 -c7 --gpus-per-task=1 --gpu-bind=closest \
  conda-python-simple -u "$PAYLOAD/ladder/nn.py"

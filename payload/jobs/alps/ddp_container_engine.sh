#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# DistributedDataParallel on 2 nodes of Alps, one rank per GPU, in an image of the Container Engine:
#   sbatch -A <account> ddp_container_engine.sh
# Only for Alps: --environment is an option of the Container Engine's plugin for Slurm.
#SBATCH -J pytorch_ddp
#SBATCH --partition=debug
#SBATCH -t 00:10:00
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=72
#SBATCH --gpus-per-node=4
#SBATCH -o pytorch_ddp_%j.out
set -e
unset SLURM_EXPORT_ENV # otherwise srun applies --export=NONE to its tasks too, and they lose what the modules set

# Keep the module that is loaded when you submit; otherwise load this one
[ -n "$PYTORCH_EDF" ] || module load PyTorch/2.12.0-ngc-26.05-ce
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi # without it: generated digits

# Submit again to resume; options that differ need --restart, which begins anew
output=$SLURM_SUBMIT_DIR/outputs/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
training=("$PAYLOAD/mnist_ddp.py" ${SLURM_GPUS_ON_NODE:+--gpu} --modelpath "$output" "$@")
# srun from Slurm 22.05 on does not inherit --cpus-per-task, and would bind each rank to fewer cores
srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-72}" --environment="$PYTORCH_EDF" \
  "$RUNSCRIPTS/conda-python-distributed" -u "${training[@]}"

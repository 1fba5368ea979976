#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# DistributedDataParallel on 2 nodes of Perlmutter, in a Shifter image: sbatch -A <account> submit_batch_shifter.sh
# Only for Perlmutter: --image and --module are options of Shifter's plugin for Slurm.
#SBATCH --image=nersc/pytorch:26.01.01
#SBATCH --module=gpu,nccl-cu13-plugin
#SBATCH -C gpu
#SBATCH -q debug
#SBATCH -t 00:10:00
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH -J dl-test-shifter
#SBATCH -o shifter_job_log_%j.out
set -e
unset SLURM_EXPORT_ENV # otherwise srun applies --export=NONE to its tasks too, and they lose what the modules set

# Keep the Shifter module that is loaded when you submit; otherwise load this one
[ -n "$SHIFTER_IMAGE" ] || module load PyTorch/2.10.0-ngc-26.01-shifter
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi # without it: generated digits

# Submit again to resume; options that differ need --restart, which begins anew
output=$SLURM_SUBMIT_DIR/outputs/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
training=("$PAYLOAD/mnist_ddp.py" ${SLURM_GPUS_ON_NODE:+--gpu} --modelpath "$output" "$@")
srun shifter --image="$SHIFTER_IMAGE" "$RUNSCRIPTS/conda-python-distributed" -u "${training[@]}"

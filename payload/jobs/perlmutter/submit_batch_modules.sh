#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# DistributedDataParallel on 2 nodes of Perlmutter, from the module: sbatch -A <account> submit_batch_modules.sh
# Only for Perlmutter.
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
unset SLURM_EXPORT_ENV # otherwise srun applies --export=NONE to its tasks too, and they lose what the modules set

# Keep the PyTorch module that is loaded when you submit; otherwise load this one
[ -n "$PAYLOADPYTORCH" ] || module load PyTorch/2.15.0-cuda-13.2-perlmutter-venv
# NCCL's plugin for Slingshot; without it, ranks on several nodes exit. If the default is not for CUDA 13, add a version
[ -z "$SLURM_GPUS_ON_NODE" ] || module load nccl
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi # without it: generated digits

# Submit again to resume; options that differ need --restart, which begins anew
output=$SLURM_SUBMIT_DIR/outputs/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
training=("$PAYLOAD/mnist_ddp.py" ${SLURM_GPUS_ON_NODE:+--gpu} --modelpath "$output" "$@")
srun conda-python-distributed -u "${training[@]}"

# The same with the variables set in the shell, as by NERSC's export_DDP_vars.sh:
# srun bash -c 'source <(ddp-env) && python -u "$PAYLOAD/mnist_ddp.py" --gpu'

#!/bin/bash
# DistributedDataParallel on 2 nodes of Perlmutter, in a Shifter image: sbatch -A <account> submit_batch_shifter.sh
#SBATCH --image=nersc/pytorch:ngc-23.07-v0
#SBATCH --module=gpu,nccl-plugin
#SBATCH -C gpu
#SBATCH -q debug
#SBATCH -t 00:10:00
#SBATCH -N 2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --gpus-per-node=4
#SBATCH -J dl-test
#SBATCH -o shifter_job_log_%j.out
set -e

module load PyTorch/2.1.0-ngc-23.07-shifter
module load MNIST

srun shifter --image="$SHIFTER_IMAGE" "$RUNSCRIPTS/conda-python-distributed" -u "$PAYLOAD/mnist_ddp.py" --gpu --modelpath "model-$SLURM_JOB_ID"

#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# DistributedDataParallel under Flux: flux batch train.flux [options of mnist_ddp.py]
# With GPUs, one rank for each: RANKS_PER_NODE=4 flux batch --exclusive train.flux --gpu
#flux: --nodes=2
#flux: --job-name=train
#flux: --time-limit=30m
#flux: --output={{name}}-{{id}}.out
set -e

# Keep the PyTorch module that is loaded when you submit, container or venv; otherwise load the site's default
[ -n "$PAYLOADPYTORCH" ] || module load PyTorch
if [ -z "$MNIST_ROOT" ] && module is-avail MNIST; then module load MNIST; fi # without it: generated digits

# The node of rank 0, for systems where Flux does not write the file of Cray's PMI: one query instead of one per rank
nodes=$(flux resource list -n -o '{nnodes}')
MASTER_ADDR=$(get-master "$(flux getattr hostlist)")
export MASTER_ADDR

# Submit again to resume; options that differ need --restart, which begins anew
training=("$PAYLOAD/mnist_ddp.py" --modelpath "$PWD/outputs/train" "$@")
flux run --nodes="$nodes" --tasks-per-node="${RANKS_PER_NODE:-2}" --exclusive \
  conda-python-distributed -u "${training[@]}"

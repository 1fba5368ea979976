# SPDX-License-Identifier: BSD-3-Clause
# The container that this shell runs in; sourced. `pytorch_launch/container.py` has the same variables.
# shellcheck shell=bash disable=SC2034 # for the scripts that source it

sif_container=${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}} # its image file, empty outside Apptainer and Singularity
shifter_container=${SHIFTER_IMAGEREQUEST:-}                      # its image, empty outside Shifter

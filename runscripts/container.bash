# The container that this shell runs in; sourced. `pytorch_launch/container.py` has the same variables.
# shellcheck shell=bash disable=SC2034 # for the scripts that source it

sif_container=${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}} # its image file, empty outside Apptainer and Singularity
shifter_container=${SHIFTER_IMAGEREQUEST:-}                      # its image, empty outside Shifter

# The image of another program (podman-hpc, enroot, Container Engine), empty outside it: pyxis sets no variable, but the
# module mounts /runscripts.
engine_container=
if [ -n "${PYTORCH_IMAGE:-}" ] && [ -e /runscripts ]; then
    engine_container=$PYTORCH_IMAGE
    export PYTORCH_CONTAINER=$PYTORCH_IMAGE
fi

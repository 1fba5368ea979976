#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Starts Python with modules loaded, in whatever environment Jupyter runs. Arguments:
# <init file of the module system> <MODULEPATH> <modules> <directories of container runtimes> <arguments for Python>...
set -eo pipefail # not -u: the module function may use unset variables
init=$1 modulepath=$2 modules=$3 runtime=$4
shift 4
fail() { echo "start-kernel: $1 and run install-kernel again" >&2; exit 1; }
[ -r "$init" ] || fail "module system not found: $init. Load the module"
# shellcheck disable=SC1090 # its path is an argument
source "$init" || true # its last command may have any status
module purge || true # Jupyter's modules; Environment Modules 5 fail if one of them is sticky
export MODULEPATH=$modulepath PATH=$PATH${runtime:+:$runtime} PYTORCH_LAUNCH_ACTIVE=0 # a runtime may be in an environment
unset EBROOTPYTORCH
# shellcheck disable=SC2086 # a list
module load $modules || true # Environment Modules 3 return no status: check the variable instead
[ -n "$EBROOTPYTORCH" ] || fail "cannot load $modules. Load an available module"
if [ -f "${!#}" ]; then # the connection file of Jupyter and the kernel: bind its directory in the image
  directory=$(dirname "$(readlink -f "${!#}")")
  export SINGULARITY_BINDPATH=${SINGULARITY_BINDPATH:+$SINGULARITY_BINDPATH,}$directory
  export APPTAINER_BINDPATH=${APPTAINER_BINDPATH:+$APPTAINER_BINDPATH,}$directory
  [ -z "${PYTORCH_MOUNTS:-}" ] || export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,$directory:$directory
fi
exec conda-python-simple "$@"

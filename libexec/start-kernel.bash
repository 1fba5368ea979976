#!/bin/bash
# Becomes Python with a module loaded, whatever environment Jupyter has; a kernel.json that install-kernel wrote calls it:
# start-kernel.bash <module system's init file> <MODULEPATH> <modules> <directory of the runtime> <Python's arguments>
set -eo pipefail # not -u: the module function is not ours
init=$1 modulepath=$2 modules=$3 runtime=$4
shift 4
if [ ! -r "$init" ]; then
  echo "start-kernel: no module system at $init any more: run install-kernel again, with the module loaded" >&2
  exit 1
fi
# shellcheck disable=SC1090 # known only there
source "$init" || true # its last command may have any status
module purge || true # what Jupyter itself has loaded; sticky modules stay, for Environment Modules 5 an error
export MODULEPATH=$modulepath PATH=$PATH${runtime:+:$runtime}
unset EBROOTPYTORCH
# shellcheck disable=SC2086 # a list
module load $modules || true # Environment Modules 3 have no status: see what it has set
if [ -z "$EBROOTPYTORCH" ]; then
  echo "start-kernel: cannot load $modules: run install-kernel again, with a module loaded that is there" >&2
  exit 1
fi
if [ -f "${!#}" ]; then # the last argument, by which Jupyter and the kernel find each other: the image sees it too
  directory=$(dirname "$(readlink -f "${!#}")")
  export SINGULARITY_BIND=${SINGULARITY_BIND:+$SINGULARITY_BIND,}$directory
  export APPTAINER_BIND=${APPTAINER_BIND:+$APPTAINER_BIND,}$directory
fi
exec conda-python-simple "$@"

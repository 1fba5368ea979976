# SPDX-License-Identifier: BSD-3-Clause
# What the starters share: errors, variables without the module, and the environment that image or module names; sourced.
# shellcheck shell=bash

# Image of Apptainer or Singularity, and of Shifter; empty elsewhere. `pytorch_launch/container.py` has the same names.
sif_container=${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}}
# shellcheck disable=SC2034 # for libexec/enter
shifter_container=${SHIFTER_IMAGEREQUEST:-}

# Exit statuses; `pytorch_launch/__init__.py` has the same.
# shellcheck disable=SC2034 # for `start`
USER_ERROR=2 NO_PYTHON=127

die() { # <exit status> <what is wrong and where. What to do>
    printf '%s: %s\n' "${0##*/}" "$2" >&2
    # for `source <(ddp-env)`, whose status is that of this line; `pytorch_launch/launch.py` has the same
    [ "${0##*/}" != ddp-env ] || echo "return $1 2>/dev/null || (exit $1)"
    exit "$1"
}

# By its path without the module, as in `srun --export=NONE`, a command has the variables that the installation recorded.
if [ -z "${RUNSCRIPTS:-}" ] && [ -f "${BASH_SOURCE[0]%/*}/../module.bash" ]; then
    # shellcheck source=/dev/null
    source "${BASH_SOURCE[0]%/*}/../module.bash"
    [ "${SLURM_PROCID:-0}" != 0 ] || printf '%s: %s\n' "${0##*/}" "the module is not loaded: using its Python without \
the settings of its cluster profile. Load it in the job script" >&2
fi

is_modules() { # <activation>: whether it is one that the module sets
    [[ ${1:-true} == true || $1 == "source ${CONTAINERROOT:-/dev/null}/venv/bin/activate" || $1 == "source /user-software/"* ]]
}

# A function, because `source .../activate` without arguments would otherwise see the user's.
activate() {
    local activation active
    # on the host there is no environment of an image to activate
    [ -z "${SIFPYTORCH:-}" ] || [ -n "$sif_container" ] || return 0
    set +u # conda's own activation scripts read unset variables
    for activation in "$WITH_CONDA" "$WITH_VENV"; do
        # a packed environment of the user's own may be mounted in place of the module's
        [[ $activation != "source /user-software/"* || ! -e /user-software/pyvenv.cfg ]] || continue
        active=${VIRTUAL_ENV-}
        # shellcheck disable=SC2086  # a command with its arguments, plain words
        $activation || die "$USER_ERROR" "'$activation' failed. Correct or unset WITH_CONDA or WITH_VENV"
        # the module's Python is on PATH; `pytorch_launch/active.py` looks for the environment that the user had activated
        [[ -z $active || ${PYTORCH_LAUNCH_ACTIVE-} == 0 ]] || ! is_modules "$activation" || export VIRTUAL_ENV=$active
    done
    set -u
}

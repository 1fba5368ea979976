# Activates the environment that the image or the module names, and becomes the launcher; sourced by
# the commands beside it.
# shellcheck shell=bash

die() { # <exit status> <what, where, what to try>
    printf '%s: %s\n' "${0##*/}" "$2" >&2
    [ "${0##*/}" != ddp-env ] || echo "return $1 2>/dev/null || (exit $1)" # for `source`, which goes by this
    exit "$1"
}

# A function, because `source .../activate` without arguments would otherwise see the user's.
activate() {
    local activation
    # on the host there is nothing of the image to activate
    [ -z "${SIFPYTORCH:-}" ] || [ -n "${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}}" ] || return 0
    set +u # conda's own activation scripts read unset variables
    for activation in "$WITH_CONDA" "$WITH_VENV"; do
        # shellcheck disable=SC2086  # a command with its arguments, plain words
        $activation || die 2 "'$activation' failed: correct or unset WITH_CONDA or WITH_VENV"
    done
    set -u
}

launch() { # <directory of this file, with a slash> <command> <its arguments>
    local directory=$1
    shift
    type -P python3 >/dev/null || die 127 "no python3 on PATH: activate one with WITH_CONDA or WITH_VENV"
    # Isolated (-I) from PYTHONPATH and the user's site directory, which are the payload's, and
    # without `site` (-S), a third of the start-up time.
    exec python3 -I -S "${directory}pytorch_launch/__main__.py" "$@"
}

# Activates the environment that the image or the module names; sourced by the conda-python-* scripts.
# shellcheck shell=bash

die() { # <exit status> <what, where, what to try>
    printf '%s: %s\n' "${0##*/}" "$2" >&2
    exit "$1"
}

# A function, because `source .../activate` without arguments would otherwise see the user's.
activate() {
    local activation
    set +u # conda's own activation scripts read unset variables
    for activation in "$WITH_CONDA" "$WITH_VENV"; do
        # shellcheck disable=SC2086  # a command with its arguments, plain words
        $activation || die 2 "'$activation' failed: correct or unset WITH_CONDA or WITH_VENV"
    done
    set -u
}

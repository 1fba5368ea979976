# SPDX-License-Identifier: BSD-3-Clause
# What the commands that enter an image share: the command to run, and how it runs in the image; sourced.
# shellcheck shell=bash

# shellcheck source=runscripts/launch.bash
source "${BASH_SOURCE[0]%/*}/../runscripts/launch.bash"
bin=${0%/*} command=${0##*/}
[ "$command ${1:-}" != "start-shell --help" ] || exec printf '%s\n' "Usage: start-shell [arguments of bash]" "" \
  "Opens a shell in the image of the loaded module; start-shell -c COMMAND runs a command there."
[ "$command" != start-shell ] || command=bash

run_here() { # <arguments>: without bin/ on PATH, which may be the host's and would lead back to this script
  PATH=:$PATH:
  PATH=${PATH//:"$bin":/:} PATH=${PATH#:} PATH=${PATH%:}
  exec "$command" "$@"
}

use_path_of_runscript() { # an image with a search path of its own sees the runscripts at their path on the host
  [ ! -x "$bin/../runscripts/$command" ] || command=$bin/../runscripts/$command
}

find_in_image() { # <arguments>: sets $command to its path in the image; runs it if this is the image
  use_path_of_runscript
  [ -n "${PYTORCH_IMAGE:-}" ] || die 1 "PYTORCH_IMAGE is not set. Load a PyTorch module"
  # a path, as pyxis sets no variable in the image; `pytorch_launch/container.py` tests the same
  [ ! -e /runscripts ] || run_here "$@"
  export USER_PATH=$PATH # as Apptainer does, for the choice of an active environment in the image
}

pass_environment() { # exports $PYTORCH_HOST; sets $inside to a command that runs another one in the image with it
  # enroot passes on no variable of the host, and podman's --env-host replaces those of the image. Here, as with pyxis,
  # the image gets all but those that it sets itself. In one line: enroot reads lines. Without Lmod's tables: with them
  # it can be longer than the 128 KiB that Linux allows (execve(2), MAX_ARG_STRLEN).
  PYTORCH_HOST=$(unset "${!_ModuleTable@}" && export -p | base64 --wrap=0)
  export PYTORCH_HOST
  # shellcheck disable=SC2016,SC2034 # for the shell in the image, and for the script that sources this
  inside=(bash -c 'image=$(export -p); eval "$(base64 -d <<<"$PYTORCH_HOST")"; eval "$image"; unset PYTORCH_HOST
    cd "$0" && exec "$@"' "$PWD")
}

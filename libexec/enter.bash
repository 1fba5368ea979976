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

find_in_image() { # <arguments>: sets $command to what the image knows; runs it, if this is the image
  # the image has a search path of its own, and sees the runscripts at their path on the host
  [ ! -x "$bin/../runscripts/$command" ] || command=$bin/../runscripts/$command
  [ -z "$engine_container" ] || run_here "$@"
  [ -n "${PYTORCH_IMAGE:-}" ] || die 1 "PYTORCH_IMAGE is not set. Load a PyTorch module"
}

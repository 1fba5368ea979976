# SPDX-License-Identifier: BSD-3-Clause
# Finds the user-software of the loaded module and locks it, for the commands that pack and unpack it.
# Packing keeps the directory, and unpacking keeps the file, until `make-squashfs --clean`: jobs on any node that loaded
# the module earlier have its path in their environment. The module mounts the file, unless the directory has .unpacked.
# shellcheck shell=bash

# shellcheck source=libexec/command.bash
source "${BASH_SOURCE[0]%/*}/command.bash"

root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd -P)
[ -z "${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}}" ] || die "cannot run in a container. Leave the container first"
[[ "${EBROOTPYTORCH:-}" -ef "$root" && -f "${SIFPYTORCH:-}" ]] || die "image of $root not found. Load its module first"
root=${EBROOTPYTORCH%/} # may be a link: user-software is next to the link
store=${root%/*}/.user-software
directory=$store/${root##*/} packed=$store/${root##*/}.squashfs
work=$store/.${root##*/}.work # incomplete files
mounted=${__PYTORCH_USER_SOFTWARE:-} mounted=${mounted%%:/user-software*} # what containers of this shell mount
[ -w "$store" ] || die "no write permission: $store. Ask the person who installed the module"
exec 9>"$store/.${root##*/}.lock" # child processes keep the lock if only this one is killed
flock --nonblock --conflict-exit-code 9 9 || [ $? != 9 ] ||
  die "another process is packing or unpacking $directory. Wait until it ends"
rm -rf "$work" # left by a killed process
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# shellcheck source=libexec/image.bash
source "${BASH_SOURCE[0]%/*}/image.bash"

is_packed() { [ -f "$packed" ] && [ ! -e "$directory/.unpacked" ]; }

finish() { # <path in use> <previous path>
  echo "${0##*/}: done. Unload and load the module to use $1"
  [ ! -e "$2" ] || echo "Running jobs may still use $2. When they have ended, delete it with make-squashfs --clean"
}

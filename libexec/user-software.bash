# What make-squashfs and unmake-squashfs share, sourced by both: where user-software is, and one of them at a time.
# Whichever of directory and packed file they replace stays until --clean, as jobs on any node that loaded the
# module before have its path in their environment. In use is the file, but for a directory with .unpacked in it.
# shellcheck shell=bash

# shellcheck source=libexec/command.bash
source "${BASH_SOURCE[0]%/*}/command.bash"

[ -z "${APPTAINER_CONTAINER:-${SINGULARITY_CONTAINER:-}}" ] || die "this works on the host: leave the container first"
root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd -P)
[[ "${EBROOTPYTORCH:-}" -ef "$root" && -f "${SIFPYTORCH:-}" ]] || die "no image of $root: load its module first"
root=${EBROOTPYTORCH%/} # user-software is beside this name, which may be a link
store=${root%/*}/.user-software
directory=$store/${root##*/} packed=$store/${root##*/}.squashfs
work=$store/.${root##*/}.work # what is not complete yet
mounted=${__PYTORCH_USER_SOFTWARE:-} mounted=${mounted%%:/user-software*} # in containers that this shell starts
[ -w "$store" ] || die "you may not change $store: ask whoever installed the module"
exec 9>"$store/.${root##*/}.lock" # also held by what this starts, should this alone be killed
flock --nonblock --conflict-exit-code 9 9 || [ $? != 9 ] || die "another one is at work on $directory: wait for it"
rm -rf "$work" # of one that was killed
mkdir "$work"
trap 'rm -rf "$work"' EXIT

# shellcheck source=libexec/image.bash
source "${BASH_SOURCE[0]%/*}/image.bash"

is_packed() { [ -f "$packed" ] && [ ! -e "$directory/.unpacked" ]; }

finish() { # <what is in use now> <what was before>
  echo "${0##*/}: done; unload and load the module to use $1"
  [ ! -e "$2" ] || echo "Jobs that loaded the module before use $2; when they have ended: make-squashfs --clean"
}

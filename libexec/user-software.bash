# What make-squashfs and unmake-squashfs share, sourced by both: where user-software is, and one of them at a time.
# Whichever of directory and packed file they replace stays until --clean, as jobs on any node that loaded the
# module before have its path in their environment. In use is the file, but for a directory with .unpacked in it.
# shellcheck shell=bash

[ "${1:-}" != --help ] || exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit 1; }

root=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd -P)
# shellcheck source=runscripts/container.bash
source "$root/runscripts/container.bash"
[ -z "$sif_container" ] || die "this works on the host: leave the container first"
[[ "${EBROOTPYTORCH:-}" -ef "$root" && -f "${SIFPYTORCH:-}" ]] || die "no image of $root: load its module first"
root=${EBROOTPYTORCH%/} # user-software is beside this name, which may be a link
store=${root%/*}/.user-software
directory=$store/${root##*/} packed=$store/${root##*/}.squashfs
work=$store/.${root##*/}.work # what is not complete yet
mounted=${__PYTORCH_USER_SOFTWARE:-} mounted=${mounted%%:/user-software*} # in containers that this shell starts
runtime=singularity
type -P "$runtime" >/dev/null || runtime=apptainer
[ -w "$store" ] || die "you may not change $store: ask whoever installed the module"
exec 9>"$store/.${root##*/}.lock" # also held by what this starts, should this alone be killed
flock --nonblock --conflict-exit-code 9 9 || [ $? != 9 ] || die "another one is at work on $directory: wait for it"
rm -rf "$work" # of one that was killed
mkdir "$work"
trap 'rm -rf "$work"' EXIT

is_packed() { [ -f "$packed" ] && [ ! -e "$directory/.unpacked" ]; }

in_image() { # <binds, in place of the module's> <command>
  SINGULARITY_BIND='' APPTAINER_BIND='' "$runtime" exec --bind "$1" "$SIFPYTORCH" "${@:2}"
}

compare() { # <packed file> <directory>: reads all of both, the file as the module mounts it; $found is what differs
  local status=0
  found=$(in_image "$1:/user-software:ro,image-src=/,$2:/mnt" \
    /user-software/venv/pytorch/bin/python -I - /user-software /mnt <"$root/libexec/compare-trees.py" 2>&1) || status=$?
  found=${found##*$'\n'}
  [[ $status = [03] ]] ||
    die "cannot compare $1 and $2, nothing has changed: ${found:-status $status}; try on another node"
  return "$status"
}

finish() { # <what is in use now> <what was before>
  echo "${0##*/}: done; unload and load the module to use $1"
  [ ! -e "$2" ] || echo "Jobs that loaded the module before use $2; when they have ended: make-squashfs --clean"
}

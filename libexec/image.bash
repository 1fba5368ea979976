# SPDX-License-Identifier: BSD-3-Clause
# Runs commands in the image of the loaded module, and compares the two forms of user-software there.
# shellcheck shell=bash disable=SC2154 # variables of user-software.bash

runtime=singularity
type -P "$runtime" >/dev/null || runtime=apptainer

in_image() { # <binds that replace the module's> <command>...
  SINGULARITY_BIND='' APPTAINER_BIND='' "$runtime" exec --bind "$1" "$SIFPYTORCH" "${@:2}"
}

compare() { # <packed file> <directory>: reads all of both, except bytecode; sets $found to a difference
  local status=0
  # diff compares types, content and links, and the lists have the permissions
  # shellcheck disable=SC2016 # for the shell in the image
  found=$(in_image "$1:/user-software:ro,image-src=/,$2:/mnt" bash -c '
    export PATH=/usr/bin:/bin LC_ALL=C # without programs of user-software
    type diff find &>/dev/null || exit 5
    modes() {
      cd "$1" && find . -mindepth 1 -name __pycache__ -prune -o ! -path ./.unpacked -printf "mode %m of %P\n" | sort
    }
    diff --recursive --brief --no-dereference --exclude=__pycache__ --exclude=.unpacked "$1" "$2" &&
      diff <(modes "$1") <(modes "$2") || exit $(($? + 2))' compare /user-software /mnt 2>&1) || status=$?
  found=${found##*$'\n'} found=${found//\/mnt/$2}
  found=${found//\/user-software/$1}
  [ "$status" != 5 ] || die "cannot compare $1 and $2, nothing has changed: the image has no diff or no find"
  [[ $status = [03] ]] ||
    die "cannot compare $1 and $2, nothing has changed: ${found:-status $status}. Try on another node"
  return "$status"
}

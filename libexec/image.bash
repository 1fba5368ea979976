# Runs commands in the image of the loaded module, and compares the two forms of user-software there.
# shellcheck shell=bash disable=SC2154 # variables of user-software.bash

runtime=singularity
type -P "$runtime" >/dev/null || runtime=apptainer

in_image() { # <binds that replace the module's> <command>...
  SINGULARITY_BIND='' APPTAINER_BIND='' "$runtime" exec --bind "$1" "$SIFPYTORCH" "${@:2}"
}

compare() { # <packed file> <directory>: reads all of both; sets $found to the difference
  local status=0
  found=$(in_image "$1:/user-software:ro,image-src=/,$2:/mnt" \
    /user-software/venv/pytorch/bin/python -I - \
    /user-software /mnt <"${BASH_SOURCE[0]%/*}/compare-trees.py" 2>&1) || status=$?
  found=${found##*$'\n'}
  [[ $status = [03] ]] ||
    die "cannot compare $1 and $2, nothing has changed: ${found:-status $status}. Try on another node"
  return "$status"
}

# SPDX-License-Identifier: BSD-3-Clause
# Writes $kernel, the description by which Jupyter starts Python with $modules and $module loaded, if Python can start.
# shellcheck shell=bash disable=SC2154 # variables of install-kernel

mkdir -p "$directory"
trap 'rm -f "$directory"/.kernel.json.*; rmdir --ignore-fail-on-non-empty "$directory"' EXIT
new=$(mktemp "$directory/.kernel.json.XXXXXX")
programs=(srun enroot podman-hpc shifter apptainer singularity)
runtimes=$(type -P "${programs[@]}" | sed 's|/[^/]*$||' | uniq | paste -sd :) || true
start=(/bin/bash "$libexec/start-kernel.bash" "$MODULESHOME/init/bash" "$MODULEPATH" "$modules$module" "$runtimes")
# in an empty environment, as Jupyter may do
output=$(env -i HOME="$HOME" USER="${USER:-}" PATH=/usr/bin:/bin "${start[@]}" - "${module/\// }" "${start[@]}" \
  <"$libexec/kernelspec.py" 2>&1 >"$new") || {
  output=$(sed '/^INFO: /d' <<<"$output" | tr -s '[:space:]' ' ') # notes of the container runtime
  die "cannot create the kernel: ${output% }"
}
chmod 644 "$new"
mv -fT "$new" "$kernel"
echo "${0##*/}: created kernel $name in $directory. Reload Jupyter's page to see it"

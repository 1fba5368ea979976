# Writes $kernel, by which Jupyter starts a Python with $modules and $module loaded, if that Python can start.
# shellcheck shell=bash disable=SC2154 # variables of install-kernel

mkdir -p "$directory"
trap 'rm -f "$directory"/.kernel.json.*; rmdir --ignore-fail-on-non-empty "$directory"' EXIT
new=$(mktemp "$directory/.kernel.json.XXXXXX")
runtime=$(type -P singularity apptainer shifter | head -n 1) || true
start=(/bin/bash "$libexec/start-kernel.bash" "$MODULESHOME/init/bash" "$MODULEPATH" "$modules$module" "${runtime%/*}")
# as Jupyter may, from an environment with nothing in it
said=$(env -i HOME="$HOME" USER="${USER:-}" PATH=/usr/bin:/bin "${start[@]}" - "${module/\// }" "${start[@]}" \
  <"$libexec/kernelspec.py" 2>&1 >"$new") || {
  said=$(sed '/^INFO: /d' <<<"$said" | tr -s '[:space:]' ' ') # without what an image's runtime notes on each start
  die "no kernel is made: ${said% }"
}
chmod 644 "$new"
mv -fT "$new" "$kernel"
echo "${0##*/}: the kernel $name is in $directory; load Jupyter's page again to see it"

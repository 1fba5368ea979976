#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
# Gives an image what all have that are built here. Runs in the image: in %post of a definition file, or in an unpacked
# image (built_images.py).
cd "${1:-/}" || exit

# A user's build on top of the image, with the module loaded, cannot make them.
mkdir -p runscripts payload user-software etc/profile.d

# `singularity run` runs its arguments, or Python without any; an image keeps its own runscript, such as the entrypoint of
# a Docker image. Where there is none, Apptainer and Singularity have one that prints this, and ends with status 0.
if grep -qs 'There is no runscript defined for this container' .singularity.d/runscript; then
  # shellcheck disable=SC2016 # for the shell in the image
  printf '%s\n' '#!/bin/sh' 'exec "${@:-python}"' >.singularity.d/runscript
fi

# The search path that a shell is started with precedes what /etc/profile and the user's own files add, such as pyenv or
# conda. Debian's bash reads bash.bashrc in interactive shells that are no login shells.
cat >etc/profile.d/zz-start-path.sh <<'EOF'
__start_path=$(tr '\0' '\n' </proc/$$/environ | sed -n 's/^PATH=//p')
__use_start_path() {
  __rest=$PATH: PATH=$__start_path
  while [ -n "$__rest" ]; do
    case :$PATH: in *:"${__rest%%:*}":*) ;; *) PATH=$PATH:${__rest%%:*} ;; esac
    __rest=${__rest#*:}
  done
}
[ -z "$__start_path" ] || __use_start_path
# in bash again before the first command after those files, which is in no file
# shellcheck disable=SC3047,SC3054 # bash
[ -z "${BASH_VERSION:-}" ] || [ -z "$__start_path" ] || eval 'trap '\''[ "${#BASH_SOURCE[@]}" != 0 ] || {
  trap - DEBUG; __use_start_path; unset -f __use_start_path; unset __start_path __rest; }'\'' DEBUG'
EOF
chmod 644 etc/profile.d/zz-start-path.sh
if [ -f etc/bash.bashrc ] && ! grep -q zz-start-path etc/bash.bashrc; then
  echo '. /etc/profile.d/zz-start-path.sh' >>etc/bash.bashrc
fi

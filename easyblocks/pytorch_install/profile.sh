# SPDX-License-Identifier: GPL-2.0-only
# In images built here, /etc/profile.d: the search path that a shell is started with precedes what /etc/profile and the
# user's own files add, such as pyenv or conda.
# shellcheck shell=sh

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

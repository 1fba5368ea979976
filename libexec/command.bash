# The start of every command of bin/: --help prints the comment at its top, and `die` ends it with an error.
# shellcheck shell=bash

[ "${1:-}" != --help ] || exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit 1; }

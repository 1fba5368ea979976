# SPDX-License-Identifier: BSD-3-Clause
# The beginning of every command of bin/: prints the command's first comment for --help, and defines the error function.
# shellcheck shell=bash

[ "${1:-}" != --help ] || exec sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"
die() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit 1; }

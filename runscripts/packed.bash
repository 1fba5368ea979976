# SPDX-License-Identifier: BSD-3-Clause
# Runs a command of a packed venv again where its file is mounted, unless that is here: only the file has `.packed`.
# Sourced with the path of the command and its arguments, if the module names a packed file.
# shellcheck shell=bash

if [ ! -e "${CONTAINERROOT:-}/.packed" ]; then
    python=/usr/bin/python3
    [ -x "$python" ] || python=$CONTAINERROOT/venv/bin/python3
    exec "$python" -I -S "${BASH_SOURCE[0]%/*}/pytorch_packed.py" "$@"
fi

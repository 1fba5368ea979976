# Runs a command of a packed venv again where its file is mounted, unless that is here: only the file has `.packed`.
# Sourced with the path of the command and its arguments, if the module names a packed file.
# shellcheck shell=bash

if [ ! -e "${CONTAINERROOT:-}/.packed" ]; then
    python=/usr/bin/python3 runscripts=${BASH_SOURCE[0]%/*}
    [ -x "$python" ] || python=$CONTAINERROOT/venv/bin/python3
    exec {program}<"$runscripts/pytorch_packed.py" # by its name, Python would open it three times
    exec "$python" -I -S -c 'import sys; exec(compile(open(int(sys.argv[1])).read(), "pytorch_packed.py", "exec"))' \
        "$program" "$runscripts" "$@"
fi

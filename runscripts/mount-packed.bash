#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Mounts a packed venv for pytorch_packed.py: mount-packed.bash SQUASHFUSE FILE DIRECTORY NAME
# Prints "mounted", and waits until its input ends: until then others can enter its namespaces.
set -euo pipefail
if [ -z "${PYTORCH_PACKED_SERVER:-}" ]; then
    export PYTORCH_PACKED_SERVER=started
    # With the user's own number, as programs refuse to run as root. unshare(1) of RHEL 8 cannot do that.
    exec unshare --user --map-user="$(id -u)" --map-group="$(id -g)" --keep-caps "$BASH" "$0" "$@"
elif [ "$PYTORCH_PACKED_SERVER" = started ]; then
    export PYTORCH_PACKED_SERVER=namespace
    exec 3<>/dev/fuse
    # The server is in the namespace of users, and not in that of the mount: this one ends with the last program in it,
    # then the kernel closes the device, and the server ends. It starts after the mount, and uses all cores.
    # Ranks may ignore signals of their step to write a checkpoint: the server does so too.
    exec 4> >(
        read -r _ || :
        trap '' HUP INT QUIT TERM USR1 USR2 ALRM CONT
        cd / && exec setsid taskset --cpu-list 0-4095 "$1" -f "$2" /dev/fd/3 &>/dev/null </dev/null
    )
    exec unshare --mount --propagation=slave "$BASH" "$0" "$@"
fi
options=ro,nosuid,nodev,fd=3,rootmode=40000,user_id=$(id -u),group_id=$(id -g)
# the number of the namespace tells this mount from its copy in a namespace below this one
namespace=$(readlink /proc/self/ns/mnt) && namespace=${namespace//[^0-9]/}
mount --internal-only --no-mtab --types fuse.squashfuse --options "$options" "$2@$4-$namespace" "$3"
exec 3>&- 4>&-
[ -e "$3/.packed" ] || { echo "$1 cannot read $2" >&2 && exit 1; }
echo mounted
read -r _ || :

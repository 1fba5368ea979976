# SPDX-License-Identifier: BSD-3-Clause
"""Recognizes what on a node prevents the containers of ordinary users from starting."""

FUSE = "Containers need /dev/fuse; ask an administrator for `modprobe fuse; chmod 0666 /dev/fuse`."
USER_NAMESPACES = "Containers need user namespaces, which this machine denies to ordinary users; ask an administrator."

#: Parts of what Apptainer 1.4 and squashfuse print.
OBSTACLES = {"/dev/fuse": FUSE, "modprobe fuse": FUSE, "user namespace": USER_NAMESPACES}


def find_obstacle(output):
    """The remedy for the output of a runtime, None if the node is not the cause."""
    return next((sentence for part, sentence in OBSTACLES.items() if part in output), None)

# SPDX-License-Identifier: BSD-3-Clause
"""Lets other processes of this user read the stacks of this one, where the kernel allows that only to its parents.

`pytorch-stacks` runs in a step of its own, so it is no parent of a rank. The permission stays with the process when it
becomes Python, and is not inherited by its children (Linux, security/yama/yama_lsm.c). Other users, and processes that
may not trace by the kernel's other rules, have none (ptrace(2), "Ptrace access mode checking").
"""

from pytorch_launch import read

#: Of the first user namespace, user_namespaces(7).
ALL_USERS = ["0", "0", "4294967295"]

PR_SET_PTRACER, ANY = 0x59616D61, -1  # prctl(2)
RTLD_NOW = 2


def allow_tracing():
    """Give the permission; a Python without `_ctypes` cannot, and the launch continues.

    In a user namespace it is not needed: the user who made it has all permissions there.
    """
    if (read("/proc/self/uid_map") or "").split() != ALL_USERS:
        return
    try:
        # in place of `ctypes`, which imports the structures of C as well
        from _ctypes import call_function, dlopen, dlsym

        call_function(dlsym(dlopen(None, RTLD_NOW), "prctl"), (PR_SET_PTRACER, ANY, 0, 0, 0))
    except (ImportError, OSError, AttributeError, TypeError):
        return

# SPDX-License-Identifier: BSD-3-Clause
"""Lets processes of this user read the stacks of this one, as `pytorch-stacks` does, where the kernel asks for it."""

from pytorch_launch.caches import in_namespace


def allow_tracing():
    """Permit it beyond the permission's holder, a parent; a Python without `_ctypes` cannot, and the launch continues.

    The permission stays when this process becomes Python, and is not inherited (Linux, security/yama/yama_lsm.c). Other
    users have none (ptrace(2)). In a user namespace the user who made it has all permissions.
    """
    if in_namespace():
        return
    try:
        # in place of `ctypes`, which imports the structures of C as well
        from _ctypes import call_function, dlopen, dlsym

        # PR_SET_PTRACER and PR_SET_PTRACER_ANY, prctl(2); 2 is RTLD_NOW
        call_function(dlsym(dlopen(None, 2), "prctl"), (0x59616D61, -1, 0, 0, 0))
    except (ImportError, OSError, AttributeError, TypeError):
        return

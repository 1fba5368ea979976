# SPDX-License-Identifier: BSD-3-Clause
"""Keeps other installations of Python and torch out of the environment of a command."""

import os
import sys

from pytorch_launch import Problem, exists, is_on, names
from pytorch_launch.active import PYTHON
from pytorch_launch.container import USER_VENV, device, image_devices

#: 1 keeps the variables as they are.
KEEP = "PYTORCH_LAUNCH_KEEP_PATHS"

#: Search paths, and the files that show that a directory there has another torch; each PYTHONHOME is another's.
MARKS = {
    "PYTHONHOME": (),
    "PYTHONPATH": ("torch", "torch.py"),
    "LD_LIBRARY_PATH": ("libtorch.so", "libtorch_cpu.so", "libc10.so"),
}
PACKAGES = ("site-packages", "dist-packages")


def isolate(env):
    """Changes that keep other installations out, name to value or None, and a list of Problems.

    A container passes the host's PYTHONPATH on, a venv inherits all variables: a module that is loaded for another
    purpose may decide which torch, or which numpy, is imported. Directories of the user's own code stay.
    """
    changes = {}
    warnings = []
    if is_on(env, KEEP, "0"):
        return changes, warnings
    image = image_devices(env)
    for name, marks in MARKS.items():
        entries = env.get(name, "").split(":")
        foreign = [entry for entry in entries if entry and _is_foreign(entry, marks, image)]
        if foreign:
            changes[name] = ":".join(entry for entry in entries if entry not in foreign) or None
            fault = f"{name}: ignoring {', '.join(foreign)}, which belongs to another Python or torch"
            warnings.append(Problem(fault, f"to keep it, export {KEEP}=1"))
    return changes, warnings


def _is_foreign(entry, marks, image):
    """Whether a directory belongs to another Python or torch; `image` are the image's device numbers."""
    if not marks:
        return True
    if device(entry) in {*image, None}:  # a missing directory brings nothing
        return False
    if "torch" in marks and os.path.basename(entry.rstrip("/")) in PACKAGES:
        return not _is_on_top(entry)
    return any(exists(f"{entry}/{mark}") for mark in marks)


def _is_on_top(packages):
    """Whether these are packages for this Python, and none that its environment, with a torch, has: a module's."""
    own = {*names(f"{sys.prefix}/lib/{PYTHON}/site-packages"), *names(f"/usr/local/lib/{PYTHON}/dist-packages")}
    shared = own.intersection(names(packages)) - {"__pycache__"}
    return f"/{PYTHON}/" in packages and "torch" in own and not shared


def shadowing(env):
    """A list of Problems: the user's own torch that Python imports instead of the module's."""
    module = env.get("SIFPYTORCH") or env.get("EBROOTPYTORCH")
    if not module or is_on(env, KEEP, "0"):
        return []
    bases = [USER_VENV]
    # the Python of a venv module puts its own packages first (keep_torch.py)
    if env.get("SIFPYTORCH") and env.get("PYTHONUSERBASE") and not env.get("PYTHONNOUSERSITE"):
        bases.append(env["PYTHONUSERBASE"])
    problems = []
    for base in bases:
        torch = f"{base}/lib/{PYTHON}/site-packages/torch"
        if exists(torch):
            remedy = f"to use it, remove this one: `rm -r {torch} {torch}-*.dist-info`"
            problems.append(Problem(f"{torch} hides the torch of {module}", remedy))
    return problems

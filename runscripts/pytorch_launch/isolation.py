# SPDX-License-Identifier: BSD-3-Clause
"""Keeps the host's other installations of packages out of Python.

A container passes the host's PYTHONPATH on, a venv inherits all variables, and a directory on PYTHONPATH comes before
Python's own: a module that is loaded for another purpose may decide which torch, or which numpy, is imported.
"""

import posix as os
import sys

from pytorch_launch import Problem, exists, names
from pytorch_launch.active import PYTHON
from pytorch_launch.container import USER_VENV, in_container

KEEP = "PYTORCH_LAUNCH_KEEP_PATHS"

# Files that show that a directory has another torch, as modules and as shared libraries.
TORCH = {"PYTHONPATH": ("torch", "torch.py"), "LD_LIBRARY_PATH": ("libtorch.so", "libtorch_cpu.so", "libc10.so")}


def isolate(env):
    """Changes that keep other installations out, name to value or None, and a list of Problems.

    Directories of the user's own code stay on PYTHONPATH, and other libraries on LD_LIBRARY_PATH.
    """
    if env.get(KEEP, "0") not in ("", "0"):
        return {}, []
    # Apptainer's image is the root; Shifter binds the directories of its image into one
    image = {os.stat(path).st_dev for path in ("/", sys.prefix)} if in_container(env) else ()
    changes, warnings = {}, []
    for name in ("PYTHONHOME", *TORCH):
        entries = env.get(name, "").split(":")
        foreign = [each for each in entries if each and (name not in TORCH or _is_foreign(each, TORCH[name], image))]
        if foreign:
            changes[name] = ":".join(entry for entry in entries if entry not in foreign) or None
            fault = f"{name}: ignoring {', '.join(foreign)}, which belongs to another Python or torch"
            warnings.append(Problem(fault, f"to keep it, export {KEEP}=1"))
    return changes, warnings


def _is_foreign(entry, marks, image):
    """Whether a directory belongs to another Python or torch; `image` are the image's device numbers."""
    if "torch" in marks and entry.rstrip("/").rpartition("/")[2] in ("site-packages", "dist-packages"):
        if _only_adds(entry):
            return False
    elif not any(exists(f"{entry}/{mark}") for mark in marks):
        return False
    return exists(entry) and os.stat(entry).st_dev not in image


def _only_adds(entry):
    """Whether a directory has packages for this Python, and none that the environment has: a module on top of it."""
    own = {*names(f"{sys.prefix}/lib/{PYTHON}/site-packages"), *names(f"/usr/local/lib/{PYTHON}/dist-packages")}
    return f"/{PYTHON}/" in entry and "torch" in own and not own.intersection(names(entry)) - {"__pycache__"}


def shadowing(env):
    """A list of Problems: the user's own torch that Python imports instead of the module's."""
    module = env.get("SIFPYTORCH") or env.get("EBROOTPYTORCH")
    if not module or env.get(KEEP, "0") not in ("", "0"):
        return []
    bases = [USER_VENV]
    # the Python of a venv module puts its own packages first (keep_torch.py)
    if env.get("SIFPYTORCH") and env.get("PYTHONUSERBASE") and not env.get("PYTHONNOUSERSITE"):
        bases.append(env["PYTHONUSERBASE"])
    problems = []
    for torch in (f"{base}/lib/{PYTHON}/site-packages/torch" for base in bases):
        if exists(torch):
            remedy = f"to use the module's torch, remove this one: `rm -r {torch} {torch}-*.dist-info`"
            problems.append(Problem(f"{torch} hides the torch of {module}", remedy))
    return problems

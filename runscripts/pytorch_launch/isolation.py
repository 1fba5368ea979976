# SPDX-License-Identifier: BSD-3-Clause
"""Keeps the host's other installations of packages out of Python.

A container passes the host's PYTHONPATH on, a venv inherits all variables, and a directory on PYTHONPATH comes before
Python's own: a module that is loaded for another purpose may decide which torch, or which numpy, is imported.
"""

import posix as os
import sys

from pytorch_launch import Problem, exists, names
from pytorch_launch.container import USER_VENV, in_container

KEEP = "PYTORCH_LAUNCH_KEEP_PATHS"

# Names of directories with packages for one Python.
INSTALLED = ("site-packages", "dist-packages")

# Files that show that a directory has another torch, as modules and as shared libraries.
TORCH = {"PYTHONPATH": ("torch", "torch.py"), "LD_LIBRARY_PATH": ("libtorch.so", "libtorch_cpu.so", "libc10.so")}


def isolate(env):
    """Changes that keep other installations out, name to value or None, and a list of Problems.

    Directories of the user's own code stay on PYTHONPATH, and other libraries on LD_LIBRARY_PATH.
    """
    if env.get(KEEP, "0") not in ("", "0"):
        return {}, []
    changes, warnings = {}, []
    if env.get("PYTHONHOME"):
        changes["PYTHONHOME"] = None
        warnings.append(_warning("PYTHONHOME", [env["PYTHONHOME"]]))
    image = ()
    if in_container(env):
        # Apptainer's image is the root; Shifter binds the directories of its image into one
        image = {os.stat(path).st_dev for path in ("/", sys.prefix)}
    for name, marks in TORCH.items():
        if not env.get(name):
            continue
        entries = env[name].split(":")
        foreign = [entry for entry in entries if entry and _is_foreign(entry, marks, image)]
        if foreign:
            changes[name] = ":".join(entry for entry in entries if entry not in foreign) or None
            warnings.append(_warning(name, foreign))
    return changes, warnings


def shadowing(env):
    """A list of Problems: the user's own torch that Python imports instead of the module's."""
    module = env.get("SIFPYTORCH") or env.get("EBROOTPYTORCH")
    if not module or env.get(KEEP, "0") not in ("", "0"):
        return []
    torch = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    bases = [USER_VENV]
    # the Python of a venv module puts its own packages first (keep_torch.py)
    if env.get("SIFPYTORCH") and env.get("PYTHONUSERBASE") and not env.get("PYTHONNOUSERSITE"):
        bases.append(env["PYTHONUSERBASE"])
    return [
        Problem(
            f"{base}/{torch} hides the torch of {module}",
            f"to use the module's torch, remove this one: `rm -r {base}/{torch} {base}/{torch}-*.dist-info`",
        )
        for base in bases
        if exists(f"{base}/{torch}")
    ]


def _is_foreign(entry, marks, image):
    """Whether a directory belongs to another Python or torch; `image` are the image's device numbers."""
    installed = "torch" in marks and entry.rstrip("/").rpartition("/")[2] in INSTALLED
    if installed and _only_adds(entry):
        return False
    if not installed and not any(exists(f"{entry}/{mark}") for mark in marks):
        return False
    try:
        return os.stat(entry).st_dev not in image
    except OSError:  # a missing directory brings nothing
        return False


def _only_adds(entry):
    """Whether a directory has packages for this Python, and none that the environment has: a module on top of it."""
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own = set()
    for directory in (f"{sys.prefix}/lib/{python}/site-packages", f"/usr/local/lib/{python}/dist-packages"):
        own.update(names(directory))
    if f"/{python}/" not in entry or "torch" not in own:
        return False
    try:
        return not own.intersection(os.listdir(entry)) - {"__pycache__"}
    except OSError:
        return False


def _warning(name, entries):
    fault = f"{name}: ignoring {', '.join(entries)}, which belongs to another Python or torch"
    return Problem(fault, f"to keep it, export {KEEP}=1")

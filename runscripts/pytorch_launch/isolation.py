"""What of the host must not reach Python: other installations of packages; called by `launch`.

A container passes the host's PYTHONPATH on, a venv takes all there is, and a directory on it comes before
Python's own: a module loaded for another purpose may decide which torch, or which numpy, is imported.
"""

import posix
import sys

from pytorch_launch.system import exists

KEEP = "PYTORCH_LAUNCH_KEEP_PATHS"

# Set in a container, where the image's own variables may well name such directories.
CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SHIFTER_IMAGEREQUEST")

# The venv that the container modules put on top of the image.
USER_SOFTWARE = "/user-software/venv/pytorch"

# Names of directories that hold what was installed for one certain Python.
INSTALLED = ("site-packages", "dist-packages")

# What makes a directory one of another torch, as modules and as shared libraries.
TORCH = {"PYTHONPATH": ("torch", "torch.py"), "LD_LIBRARY_PATH": ("libtorch.so", "libtorch_cpu.so", "libc10.so")}


def isolate(env):
    """Changes that keep other installations out, name to value or None, and a list of warnings.

    Directories of the user's own code stay on PYTHONPATH, and other libraries on LD_LIBRARY_PATH.
    """
    if env.get(KEEP, "0") not in ("", "0"):
        return {}, []
    changes, warnings = {}, []
    if env.get("PYTHONHOME"):
        changes["PYTHONHOME"] = None
        warnings.append(_warning("PYTHONHOME", [env["PYTHONHOME"]]))
    image = ()
    if any(env.get(name) for name in CONTAINERS):
        # Apptainer's image is the root; Shifter binds the directories of its image into one
        image = {posix.stat(path).st_dev for path in ("/", sys.prefix)}
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
    """A list of warnings: the user's own torch that Python imports in place of the module's."""
    module = env.get("SIFPYTORCH") or env.get("EBROOTPYTORCH")
    if not module or env.get(KEEP, "0") not in ("", "0"):
        return []
    torch = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    bases = [USER_SOFTWARE]
    if env.get("PYTHONUSERBASE") and not env.get("PYTHONNOUSERSITE"):
        bases.append(env["PYTHONUSERBASE"])
    return [
        f"{base}/{torch} is imported in place of the torch of {module}: to use the module's, run `pip uninstall torch`"
        for base in bases
        if exists(f"{base}/{torch}")
    ]


def _is_foreign(entry, marks, image):
    """Whether a directory belongs to another Python or torch; `image` are the image's device numbers."""
    installed = "torch" in marks and entry.rstrip("/").rpartition("/")[2] in INSTALLED
    if not installed and not any(exists(f"{entry}/{mark}") for mark in marks):
        return False
    try:
        return posix.stat(entry).st_dev not in image
    except OSError:  # not there at all, so nobody's
        return False


def _warning(name, entries):
    return f"{name}: {', '.join(entries)} belongs to another Python or torch and is left out ({KEEP}=1 keeps it)"

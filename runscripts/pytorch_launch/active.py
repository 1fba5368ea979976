# SPDX-License-Identifier: BSD-3-Clause
"""Decides which Python runs, that of the environment that the user has activated, else the module's.

Every command asks here, on hosts and in images. Files decide: no second interpreter starts.
"""

import os
import sys

from pytorch_launch import LaunchError, Problem, Record, exists, is_on, names, read
from pytorch_launch.container import USER_VENV, bind_line, device, image_devices
from pytorch_launch.topology import read_table

#: 0 runs the module's Python whatever is active.
ACTIVE = "PYTORCH_LAUNCH_ACTIVE"
ON_TOP = "python -m venv --system-site-packages"

#: As directories of packages are named.
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Choice(Record):
    """Which Python runs.

    `prefix`    the user's environment, None for the module's Python or, without a module, the one on PATH
    `changes`   variables to set, name to value, or None for one to unset
    `warnings`  Problems
    """

    fields = "prefix changes warnings"


class Module(Record):
    """The loaded module: its real directory, "" without one; and the device numbers of its image, none on a host."""

    fields = "root image"

    def owns(self, path):
        """Whether a path is in its installation, in its image, or in user-software."""
        roots = (f"{USER_VENV}/", f"{self.root or USER_VENV}/")
        return f"{os.path.realpath(path)}/".startswith(roots) or device(path) in self.image


def choose_python(env):
    """The Choice for a process with environment `env`. Raises LaunchError."""
    root = env.get("CONTAINERROOT") or env.get("EBROOTPYTORCH")
    module = Module(os.path.realpath(root) if root else "", image_devices(env))
    if not root and not module.image:
        return Choice(None, {}, [])
    prefix = None
    if is_on(env, ACTIVE, "1"):
        prefix = _named(env, "VIRTUAL_ENV", module) or _on_path(env, module) or _named(env, "CONDA_PREFIX", module)
    if prefix is None or _is_below(prefix, module):
        return _use_modules(env, module, [])
    torch = _find_torch(prefix, _bases(prefix, module))
    if torch is None:
        return _skip(env, prefix, module)
    return _use(env, prefix, torch, module)


def _named(env, name, module):
    """The user's environment that a variable names, None without one. Raises LaunchError if it is not visible."""
    prefix = env.get(name, "")
    is_base = name == "CONDA_PREFIX" and env.get("CONDA_DEFAULT_ENV") == "base"
    if not prefix or is_base or module.owns(prefix):
        return None
    if exists(prefix):
        return prefix
    bind = f", or {bind_line(env, prefix)}" if module.image else ""
    raise LaunchError(f"{name}={prefix} is active, but not visible here", f"deactivate it{bind}")


def _on_path(env, module):
    """The user's environment with the first Python on PATH that is not the module's, None for another Python."""
    path = env.get("PATH", "").split(":")
    if module.image:
        # Apptainer passes the host's PATH in USER_PATH, as libexec/enter does for other programs
        path += env.get("USER_PATH", "").split(":")
    for entry in filter(_has_python, path):
        if not module.owns(entry):
            prefix = os.path.dirname(entry.rstrip("/"))
            if exists(f"{prefix}/pyvenv.cfg") or exists(f"{prefix}/conda-meta"):
                return prefix
            return None
    return None


def _has_python(directory):
    return os.path.lexists(f"{directory}/python") or os.path.lexists(f"{directory}/python3")


def _is_below(prefix, module):
    """Whether the module's Python is a copy of the one in `prefix`, such as a conda module's: it links its headers."""
    headers = os.path.realpath(f"{module.root}/venv/include/{PYTHON}")
    return headers.startswith(f"{os.path.realpath(prefix)}/")


def _bases(prefix, module):
    """The directories below which an environment has packages: its own, and for one on top, those of its Python."""
    config = read_table(f"{prefix}/pyvenv.cfg", "=")
    if not config:  # of conda
        return [prefix]
    python = os.path.realpath(f"{prefix}/bin/python")
    home = os.path.dirname(python)
    if python.startswith(f"{os.path.realpath(prefix)}/"):
        home = config.get("home", "")  # a copy of the one there
    fault = None
    if not exists(python):
        fault = "does not exist here"
    elif module.image and device(home) not in module.image:
        fault = "is not the image's"
    if fault:
        remedy = f"Deactivate it, or make it again here: `{ON_TOP} {prefix}`"
        raise LaunchError(f"{prefix} is active, but its Python, {python}, {fault}", remedy)
    if config.get("include-system-site-packages") != "true":
        return [prefix]
    base = os.path.dirname(home)
    return [prefix, f"{base}/local", base]  # Debian's pip installs to /usr/local/lib/python3.11/dist-packages


def _find_torch(prefix, bases):
    """The directory from which an environment imports torch, None if it has none."""
    pythons = {name for name in names(f"{prefix}/lib") if name.startswith("python3")} | {"python3"}
    for base in bases:
        for library in (f"{base}/lib", f"{base}/lib64"):
            for name in pythons.intersection(names(library)):
                torch = _torch_in(f"{library}/{name}/site-packages") or _torch_in(f"{library}/{name}/dist-packages")
                if torch:
                    return torch
    return None


def _torch_in(directory):
    """The torch in a directory of packages, or in one that its `.pth` files name; None without one."""
    places = [directory]
    for name in names(directory):
        if name.endswith(".pth"):  # a line, or a text in a line of code
            text = read(f"{directory}/{name}") or ""
            places += text.replace("'", "\n").replace('"', "\n").splitlines()
    for place in places:
        if place.startswith("/") and exists(f"{place}/torch"):
            return f"{place}/torch"
    return None


def _use(env, prefix, torch, module):
    """The Choice of an environment with the torch in the directory `torch`."""
    path = [entry for entry in env.get("PATH", "").split(":") if entry != f"{prefix}/bin"]
    changes = {"PATH": ":".join([f"{prefix}/bin", *path]), "VIRTUAL_ENV": None}
    if exists(f"{prefix}/pyvenv.cfg"):
        changes["VIRTUAL_ENV"] = prefix
    if module.owns(torch):
        return Choice(prefix, changes, [])
    fault = f"{prefix} is active: using its torch, {torch}, in place of the module's"
    return Choice(prefix, changes, [Problem(fault, "to use the module's, deactivate it")])


def _skip(env, prefix, module):
    """The Choice of the module's Python for conda's base without a torch; raises LaunchError for another environment.

    A shell activates base by itself.
    """
    fault = f"{prefix} is active and has no torch"
    remedy = f"run `deactivate` (`conda deactivate`), or make one that sees the module's torch: `{ON_TOP} DIRECTORY`"
    if not exists(f"{prefix}/condabin"):
        raise LaunchError(fault, remedy)
    return _use_modules(env, module, [Problem(f"{fault}: using the module's Python", remedy)])


def _use_modules(env, module, warnings):
    """The Choice of the module's Python, which comes first on PATH then."""
    path = env.get("PATH", "").split(":")
    first = next(filter(_has_python, path), None)
    if first is None or module.owns(first):
        return Choice(None, {}, warnings)
    path.sort(key=lambda entry: not module.owns(entry))
    return Choice(None, {"PATH": ":".join(path)}, warnings)

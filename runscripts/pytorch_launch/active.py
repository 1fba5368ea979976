# SPDX-License-Identifier: BSD-3-Clause
"""Decides which Python runs: that of the environment that the user has activated, else the module's.

Every command asks here, on hosts and in images. Files decide: no second interpreter starts.
"""

import sys

from pytorch_launch import LaunchError, Problem, Value, exists, names, read
from pytorch_launch.container import USER_VENV, bind_line, check_directory, device, image_devices

#: 0 runs the module's Python whatever is active.
ACTIVE = "PYTORCH_LAUNCH_ACTIVE"

ON_TOP = "python -m venv --system-site-packages"


class Choice(Value):
    """Which Python runs.

    `prefix`    the active environment that it belongs to; None for the module's, or, without a module, that on PATH
    `changes`   variables to set, name to value, or None for one to unset
    `warnings`  Problems
    """

    __slots__ = ("changes", "prefix", "warnings")
    DEFAULTS = {"prefix": None, "changes": {}, "warnings": ()}


def choose_python(env):
    """The Choice for a process with environment `env`. Raises LaunchError."""
    check_directory(env)
    if env.get(ACTIVE) == "0":
        return Choice()
    image, root = image_devices(env), env.get("CONTAINERROOT") or env.get("EBROOTPYTORCH") or ""
    prefix, variable = _active(env, image, root) if root or image else (None, None)
    if prefix is None:
        return Choice()
    if variable and not exists(prefix):
        return _missing(env, prefix, variable, image)
    config = _config(prefix)
    if config is not None:
        _check_interpreter(prefix, config, image)
    path = env.get("PATH", "").split(":")
    torch = _torch_of(prefix, config)
    if torch is None:
        path.sort(key=lambda entry: _is_users(_prefix(entry), image, root))
        fault = f"{prefix} is active and has no torch: using the module's Python"
        remedy = f"Deactivate it, or make one that sees the module's torch: `{ON_TOP} DIRECTORY`"
        return Choice(changes=_changed(env, {"PATH": ":".join(path)}), warnings=[Problem(fault, remedy)])
    is_modules = device(torch) in image if image else _real(torch).startswith(_real(root) + "/")
    fault = f"{prefix} is active: using its torch, {torch}, in place of the module's"
    variables = {
        "PATH": ":".join([f"{prefix}/bin", *(entry for entry in path if entry != f"{prefix}/bin")]),
        "VIRTUAL_ENV": None if config is None else prefix,
    }
    warnings = () if is_modules else [Problem(fault, "to use the module's, deactivate it")]
    return Choice(prefix=prefix, changes=_changed(env, variables), warnings=warnings)


def _changed(env, variables):
    return {name: value for name, value in variables.items() if env.get(name) != value}


def _active(env, image, root):
    """The active environment, None without one; and the variable that names it, None if a search path does."""
    # Apptainer passes the host's PATH in USER_PATH, as libexec/enter does for other programs
    paths = f"{env.get('PATH', '')}:{env.get('USER_PATH', '') if image else ''}"
    for prefix in dict.fromkeys(map(_prefix, paths.split(":"))):
        if _is_users(prefix, image, root):
            return prefix, None
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = env.get(name, "").rstrip("/")
        if prefix and not _is_modules(prefix, image, root):
            return prefix, name
    return None, None


def _prefix(entry):
    """The directory above `bin`, "" for an entry of PATH with another name."""
    directory, _, name = entry.rstrip("/").rpartition("/")
    return directory if name == "bin" else ""


def _is_users(prefix, image, root):
    marks = ("pyvenv.cfg", "conda-meta")
    return (
        bool(prefix)
        and not _is_modules(prefix, image, root)
        and any(exists(f"{prefix}/{mark}") for mark in marks)
        # the module's Python may be a copy of a conda module's, and links to its headers
        and not (root and not image and _headers(root).startswith(_real(prefix) + "/"))
    )


def _real(path):
    import os  # most launches do not need it

    return os.path.realpath(path)


def _headers(root):
    version = ".".join(map(str, sys.version_info[:2]))
    return _real(f"{root}/venv/include/python{version}")


def _is_modules(prefix, image, root):
    """Whether a directory is the module's own: of its image, in its installation, or user-software."""
    return prefix == USER_VENV or bool(root and f"{prefix}/".startswith(f"{root}/")) or device(prefix) in image


def _config(prefix):
    text = read(f"{prefix}/pyvenv.cfg")
    lines = (line.partition("=") for line in (text or "").splitlines())
    return None if text is None else {name.strip().lower(): value.strip() for name, _, value in lines}


def _version(config):
    return (config.get("version") or config.get("version_info") or "").split(".")[:3]


def _check_interpreter(prefix, config, image):
    """Raise LaunchError unless the Python of a virtual environment belongs to where this process runs."""
    version, running = ".".join(_version(config)), ".".join(map(str, sys.version_info[:3]))
    python = f"{config.get('home', '')}/python{'.'.join(_version(config)[:2])}"
    where = "in this image" if image else "on this host"
    fault = None
    if not exists(python) or not exists(f"{prefix}/bin/python"):
        fault = f"does not exist {where}"
    elif image and device(_real(python).rpartition("/")[0]) not in image:
        fault = "is not the image's"
    elif image and version != running and _real(python) == _real(getattr(sys, "_base_executable", sys.executable)):
        fault = f"is {running} {where}, not {version}"
    if fault:
        remedy = f"Deactivate it, or make it again {where}: `{ON_TOP} {prefix}`"
        raise LaunchError(f"{prefix} is active, but its Python, {python}, {fault}", remedy)


def _torch_of(prefix, config):
    """The directory from which an environment imports torch, None if it has none."""
    if config is None:
        places = [f"{prefix}/lib/{name}/site-packages" for name in sorted(names(f"{prefix}/lib")) if "python3" in name]
    else:
        python = f"python{'.'.join(_version(config)[:2])}"
        places = [f"{prefix}/lib/{python}/site-packages"]
        if config.get("include-system-site-packages") == "true":
            base = config.get("home", "").rpartition("/")[0]
            # the last two are Debian's, of pip and of apt
            of_base = (f"lib/{python}/site-packages", f"local/lib/{python}/dist-packages", "lib/python3/dist-packages")
            places += [f"{base}/{place}" for place in of_base]
    return next(filter(None, map(_torch_in, places)), None)


def _torch_in(directory):
    """The torch in a directory of packages, or in one that its `.pth` files name; None without one."""
    places = [directory]
    if not exists(f"{directory}/torch"):
        texts = [read(f"{directory}/{name}") or "" for name in names(directory) if name.endswith(".pth")]
        # a line, or a text in a line of code
        places = [place for text in texts for place in text.replace("'", "\n").replace('"', "\n").splitlines()]
    return next((f"{place}/torch" for place in places if place[:1] == "/" and exists(f"{place}/torch")), None)


def _missing(env, prefix, variable, image):
    """The Choice for an environment that only a variable names, and that does not exist here."""
    fault = f"{variable}={prefix} is active, but not visible {'in this image' if image else 'on this host'}"
    if image and not (variable == "CONDA_PREFIX" and env.get("CONDA_DEFAULT_ENV") == "base"):
        raise LaunchError(fault, f"Deactivate it, or {bind_line(env, prefix)}")
    return Choice(warnings=[Problem(f"{fault}: using the module's Python", f"unset {variable}")])

# SPDX-License-Identifier: BSD-3-Clause
"""Decides which Python runs, that of the environment that the user has activated, else the module's; and what it sees.

Every command asks here, on hosts and in images. Files decide: no second interpreter starts.
"""

import posix as os
import sys

from pytorch_launch import LaunchError, Problem, Value, ancestors, exists, is_on, names, read
from pytorch_launch.topology import STARTERS, read_table
from pytorch_launch.world import in_job

#: 0 runs the module's Python whatever is active.
ACTIVE = "PYTORCH_LAUNCH_ACTIVE"

ON_TOP = "python -m venv --system-site-packages"

KEEP = "PYTORCH_LAUNCH_KEEP_PATHS"

#: Search paths, and the files that show that a directory there has another torch; each PYTHONHOME is another's.
MARKS = {
    **{"PYTHONHOME": (), "PYTHONPATH": ("torch", "torch.py")},
    "LD_LIBRARY_PATH": ("libtorch.so", "libtorch_cpu.so", "libc10.so"),
}

#: As directories of packages are named.
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


class Choice(Value):
    """Which Python runs: that of the active environment `prefix`, None for the module's, or, without one, that on PATH.

    `changes` are variables to set, name to value, or None for one to unset; `warnings` are Problems.
    """

    DEFAULTS = {"prefix": None, "changes": {}, "warnings": ()}


def choose_python(env):
    """The Choice for a process with environment `env`. Raises LaunchError."""
    check_directory(env)
    image, root = image_devices(env), env.get("CONTAINERROOT") or env.get("EBROOTPYTORCH") or ""
    is_asked = is_on(env, ACTIVE, "1") and (root or image)
    prefixes, variable = _active(env, image, root) if is_asked else ((), None)
    if not prefixes:
        return Choice()
    prefix, config = prefixes[0], _config(prefixes[0])
    where = "in this image" if image else "on this host"
    if variable and not exists(prefix):
        fault = f"{variable}={prefix} is active, but not visible {where}"
        if image and not (variable == "CONDA_PREFIX" and env.get("CONDA_DEFAULT_ENV") == "base"):
            raise LaunchError(fault, f"Deactivate it, or {bind_line(env, prefix)}")
        return Choice(warnings=[Problem(f"{fault}: using the module's Python", f"unset {variable}")])
    fault = _interpreter_fault(prefix, config, image, where) if config else None
    if fault:
        remedy = f"Deactivate it, or make it again {where}: `{ON_TOP} {prefix}`"
        raise LaunchError(f"{prefix} is active, but its Python, {fault}", remedy)
    path, torch = env.get("PATH", "").split(":"), _torch_of(prefix, config)
    if torch is None:
        path.sort(key=lambda entry: _prefix(entry) in prefixes)
        fault = f"{prefix} is active and has no torch: using the module's Python"
        remedy = f"Deactivate it, or make one that sees the module's torch: `{ON_TOP} DIRECTORY`"
        return Choice(changes={"PATH": ":".join(path)}, warnings=[Problem(fault, remedy)])
    path = [f"{prefix}/bin", *(entry for entry in path if entry != f"{prefix}/bin")]
    is_modules = device(torch) in image if image else _real(torch).startswith(_real(root) + "/")
    fault = f"{prefix} is active: using its torch, {torch}, in place of the module's"
    return Choice(
        prefix=prefix,
        changes={"PATH": ":".join(path), "VIRTUAL_ENV": prefix if config else None},
        warnings=[] if is_modules else [Problem(fault, "to use the module's, deactivate it")],
    )


def _active(env, image, root):
    """The user's environments on the search paths, else the one that a variable names, and this variable."""
    # Apptainer passes the host's PATH in USER_PATH, as libexec/enter does for other programs
    paths = f"{env.get('PATH', '')}:{env.get('USER_PATH', '') if image else ''}"
    found = [
        prefix
        for prefix in dict.fromkeys(map(_prefix, paths.split(":")))
        if prefix and not _is_modules(prefix, image, root)
        if exists(f"{prefix}/pyvenv.cfg") or exists(f"{prefix}/conda-meta")
        # the module's Python may be a copy of a conda module's, and links to its headers
        if image or not root or not _real(f"{root}/venv/include/{PYTHON}").startswith(_real(prefix) + "/")
    ]
    for name in () if found else ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = env.get(name, "").rstrip("/")
        if prefix and not _is_modules(prefix, image, root):
            return [prefix], name
    return found, None


def _prefix(entry):
    """The directory above `bin`, "" for an entry of PATH with another name."""
    directory, _, name = entry.rstrip("/").rpartition("/")
    return directory if name == "bin" else ""


def _is_modules(prefix, image, root):
    """Whether a directory is the module's own: of its image, in its installation, or user-software."""
    return prefix == USER_VENV or bool(root and f"{prefix}/".startswith(f"{root}/")) or device(prefix) in image


def _real(path):
    from os.path import realpath  # most launches do not need it

    return realpath(path)


def _config(prefix):
    """What a virtual environment records, None for another one.

    There is always "version", "python", the name of its interpreter with the version, and "interpreter", the file that
    it was made from, None if that is gone.
    """
    config = {name.lower(): value for name, value in read_table(f"{prefix}/pyvenv.cfg", "=").items()}
    if not config:
        return None
    version = (config.get("version") or config.get("version_info") or "").split(".")[:3]
    home, python = config.get("home", ""), f"python{'.'.join(version[:2])}"
    # uv records /usr/local/bin, in which an image may have a link to /usr/bin/python3.11 of another name
    files = ((name, _real(f"{home}/{name}")) for name in (python, "python3", "python"))
    # python3.13 may be a link to python3.13t
    found = (file for name, file in files if exists(file) and (name == python or file.endswith(python)))
    return {**config, "home": home, "version": ".".join(version), "python": python, "interpreter": next(found, None)}


def _interpreter_fault(prefix, config, image, where):
    """Why the Python of a virtual environment does not belong to where this process runs, None if it does."""
    file, running = config["interpreter"], ".".join(map(str, sys.version_info[:3]))
    if file is None or not exists(f"{prefix}/bin/python"):
        return f"{config['home']}/{config['python']}, does not exist {where}"
    if image and device(file.rpartition("/")[0]) not in image:
        return f"{file}, is not the image's"
    if image and config["version"] != running and file == _real(getattr(sys, "_base_executable", sys.executable)):
        return f"{file}, is {running} {where}, not {config['version']}"
    return None


def _torch_of(prefix, config):
    """The directory from which an environment imports torch, None if it has none."""
    bases, python = [prefix], config["python"] if config else "python3"
    if config and config.get("include-system-site-packages") == "true":
        homes = (config["home"], config["interpreter"].rpartition("/")[0])
        bases += [home.rpartition("/")[0] + local for home in homes for local in ("/local", "")]
    places = (  # Debian's are /usr/local/lib/python3.13/dist-packages of pip, and /usr/lib/python3/dist-packages of apt
        f"{base}/{library}/{name}/{packages}"
        for base in bases
        for library in ("lib", "lib64")
        for name in sorted(names(f"{base}/{library}"))
        if name.startswith(python) or name == "python3"
        for packages in ("site-packages", "dist-packages")
    )
    return next(filter(None, map(_torch_in, places)), None)


def _torch_in(directory):
    """The torch in a directory of packages, or in one that its `.pth` files name; None without one."""
    places = [directory]
    for name in names(directory):
        if name.endswith(".pth"):  # a line, or a text in a line of code
            text = read(f"{directory}/{name}") or ""
            places += [place for place in text.replace("'", "\n").replace('"', "\n").splitlines() if place[:1] == "/"]
    return next((f"{place}/torch" for place in places if exists(f"{place}/torch")), None)


def isolate(env):
    """Changes that keep other installations out, name to value or None, and a list of Problems.

    A container passes the host's PYTHONPATH on, a venv inherits all variables: a module that is loaded for another
    purpose may decide which torch, or which numpy, is imported. Directories of the user's own code stay.
    """
    changes, warnings, image = {}, [], image_devices(env)
    for name, marks in () if is_on(env, KEEP, "0") else MARKS.items():
        entries = env.get(name, "").split(":")
        foreign = [entry for entry in entries if entry and (not marks or _is_foreign(entry, marks, image))]
        if foreign:
            changes[name] = ":".join(entry for entry in entries if entry not in foreign) or None
            fault = f"{name}: ignoring {', '.join(foreign)}, which belongs to another Python or torch"
            warnings.append(Problem(fault, f"to keep it, export {KEEP}=1"))
    return changes, warnings


def _is_foreign(entry, marks, image):
    """Whether a directory belongs to another Python or torch; `image` are the image's device numbers."""
    if device(entry) in {*image, None}:  # a missing directory brings nothing
        return False
    if "torch" not in marks or entry.rstrip("/").rpartition("/")[2] not in ("site-packages", "dist-packages"):
        return any(exists(f"{entry}/{mark}") for mark in marks)
    own = {*names(f"{sys.prefix}/lib/{PYTHON}/site-packages"), *names(f"/usr/local/lib/{PYTHON}/dist-packages")}
    # packages for this Python, and none that its environment has: a module on top of it
    return f"/{PYTHON}/" not in entry or "torch" not in own or own.intersection(names(entry)) - {"__pycache__"} != set()


def shadowing(env):
    """A list of Problems: the user's own torch that Python imports instead of the module's."""
    module, bases = env.get("SIFPYTORCH") or env.get("EBROOTPYTORCH"), [USER_VENV]
    # the Python of a venv module puts its own packages first (keep_torch.py)
    if env.get("SIFPYTORCH") and env.get("PYTHONUSERBASE") and not env.get("PYTHONNOUSERSITE"):
        bases.append(env["PYTHONUSERBASE"])
    return [
        Problem(f"{each} hides the torch of {module}", f"to use it, remove this one: `rm -r {each} {each}-*.dist-info`")
        for each in (f"{base}/lib/{PYTHON}/site-packages/torch" for base in bases)
        if module and not is_on(env, KEEP, "0") and exists(each)
    ]


#: Variables that Apptainer, Singularity and Shifter set in a container, to its image. `launch.bash` has the same.
CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SHIFTER_IMAGEREQUEST")

#: The directory of runscripts in an image that enroot, the Container Engine or podman-hpc starts. Their modules name
#: the image in the variable, on the host too; pyxis sets none in the image.
ENGINE_IMAGE, RUNSCRIPTS = "PYTORCH_IMAGE", "/runscripts"

#: The directory of the packages that users install on top of an image, and the virtual environment in it.
USER_SOFTWARE = "/user-software"
USER_VENV = "/user-software/venv/pytorch"


def in_container(env):
    """Whether a process with environment `env` is in a container."""
    return any(env.get(name) for name in CONTAINERS) or bool(env.get(ENGINE_IMAGE) and exists(RUNSCRIPTS))


def image_devices(env):
    """The numbers of the file systems of the image's directories, none on a host.

    Without an overlay "/" is made in memory, and what is below it comes from the image, as with Shifter. With one,
    files have others (Linux, Documentation/filesystems/overlayfs.rst, "Inode properties").
    """
    return {device("/"), device("/usr")} if in_container(env) else set()


def device(path):
    try:
        return os.stat(path).st_dev
    except (OSError, ValueError):
        return None


def bind_line(env, directory):
    """What makes a directory of the host visible in this container, as the end of a sentence."""
    for name in ("APPTAINER", "SINGULARITY"):  # Apptainer sets the variables of Singularity too
        if env.get(f"{name}_CONTAINER"):
            return f"bind it: `export {name}_BIND=${name}_BIND,{directory}`"
    if env.get("PYTORCH_MOUNTS"):  # of the modules for enroot and podman-hpc
        return f"mount it: `export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,{directory}:{directory}`"
    return f"mount {directory} in the image"


def check_cleaned(env):
    """Raise LaunchError if the variables of the module, or those of the launcher, did not reach this container."""
    fault = None
    if not env.get("RUNSCRIPTS") and exists(f"{RUNSCRIPTS}/launch.bash"):
        fault = f"{RUNSCRIPTS} is bound, but RUNSCRIPTS, and so the variables of srun, are missing"
    elif in_container(env) and not in_job(env) and not env.get("USER"):  # --cleanenv removes this as well
        launchers = (name for _, name in ancestors() if name in (*STARTERS, "slurmstepd", "flux-shell"))
        fault = next((f"{name} started this image, but its variables are missing" for name in launchers), None)
    if fault:
        fault += ": --cleanenv, -e, --containall or APPTAINER_CLEANENV removed them"
        raise LaunchError(fault, "Start the image without it, or use conda-python-simple for one process")


def check_directory(env):
    """Raise LaunchError in a container that started in the home directory, as it does not see that of the job.

    Another file of the same name there would run in place of the job's.
    """
    submitted = env.get("SLURM_SUBMIT_DIR") or env.get("PBS_O_WORKDIR")
    if not submitted or not env.get("HOME") or not in_container(env) or exists(submitted):
        return
    # samefile(), without its module
    if exists(".") and exists(env["HOME"]) and os.stat(".")[1:3] == os.stat(env["HOME"])[1:3]:
        fault = f"{submitted}, the job's directory, is not visible in this image, which started in {env['HOME']}"
        raise LaunchError(fault, bind_line(env, _real(submitted)))

# SPDX-License-Identifier: BSD-3-Clause
"""Whether this process is in a container, what there comes from the image, and what is missing there."""

import os

from pytorch_launch import LaunchError, ancestors, exists

#: Variables that Apptainer, Singularity and Shifter set in a container, to its image. `launch.bash` has the same.
CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SHIFTER_IMAGEREQUEST")

#: The module for enroot, the Container Engine and podman-hpc names the image in this variable, on the host too.
ENGINE_IMAGE = "PYTORCH_IMAGE"

#: The directory of runscripts in an image. pyxis sets no variable there.
RUNSCRIPTS = "/runscripts"

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
    """The number of the file system of a path, None if there is no such path."""
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


def check_cleaned(env, is_in_job, programs):
    """Raise LaunchError if the variables of the module, or those of the launcher, did not reach this container.

    `is_in_job` tells whether the variables of a job did, `programs` are the names of launchers' programs.
    """
    fault = None
    if not env.get("RUNSCRIPTS") and exists(f"{RUNSCRIPTS}/launch.bash"):
        fault = f"{RUNSCRIPTS} is bound, but RUNSCRIPTS, and so the variables of srun, are missing"
    elif in_container(env) and not is_in_job and not env.get("USER"):  # --cleanenv removes this as well
        found = programs.intersection(name for _, name in ancestors())
        if found:
            fault = f"{found.pop()} started this image, but its variables are missing"
    if fault:
        fault += ": --cleanenv, -e, --containall or APPTAINER_CLEANENV removed them"
        raise LaunchError(fault, "Start the image without it, or use conda-python-simple for one process")


def check_directory(env, directory):
    """Raise LaunchError in a container that started in the home directory, as it does not see the job's `directory`.

    Another file of the same name there would run in place of the job's.
    """
    home = env.get("HOME")
    if not directory or not home or not in_container(env) or exists(directory):
        return
    if exists(".") and exists(home) and os.path.samefile(".", home):
        fault = f"{directory}, the job's directory, is not visible in this image, which started in {home}"
        raise LaunchError(fault, bind_line(env, os.path.realpath(directory)))

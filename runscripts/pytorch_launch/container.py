# SPDX-License-Identifier: BSD-3-Clause
"""The container that this process runs in, and what it does not see of the host."""

import posix as os

from pytorch_launch import LaunchError, exists

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

    Without an overlay "/" is made in memory, and what is below it comes from the image. With one, files have others
    (Linux, Documentation/filesystems/overlayfs.rst, "Inode properties").
    """
    return {device("/"), device("/usr")} if in_container(env) else set()


def device(path):
    try:
        return os.stat(path).st_dev
    except (OSError, ValueError):
        return None


def bind_variable(env):
    """The variable with the directories that this container sees, None where its runtime has no such variable."""
    runtimes = ("APPTAINER", "SINGULARITY")  # Apptainer sets the variables of Singularity too
    return next((f"{runtime}_BIND" for runtime in runtimes if env.get(f"{runtime}_CONTAINER")), None)


def bind_line(env, directory):
    """What makes a directory of the host visible in this container, as the end of a sentence."""
    name = bind_variable(env)
    return f"bind it: `export {name}=${name},{directory}`" if name else f"mount {directory} in the image"


def check_cleaned(env):
    """Raise LaunchError if the variables of the module, and so of srun, did not reach this container."""
    if not env.get("RUNSCRIPTS") and exists(f"{RUNSCRIPTS}/launch.bash"):
        fault = f"{RUNSCRIPTS} is bound, but RUNSCRIPTS, and so the variables of srun, are missing: --cleanenv, -e, "
        fault += "--containall or APPTAINER_CLEANENV removed them"
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
        from os.path import realpath

        fault = f"{submitted}, the job's directory, is not visible in this image, which started in {env['HOME']}"
        raise LaunchError(fault, bind_line(env, realpath(submitted)))

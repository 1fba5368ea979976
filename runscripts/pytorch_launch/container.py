# SPDX-License-Identifier: BSD-3-Clause
"""The container that this process runs in."""

import os

#: Variables that Apptainer, Singularity and Shifter set in a container, to its image. `container.bash` has the same.
CONTAINERS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SHIFTER_IMAGEREQUEST")

#: The directory of runscripts in an image that enroot, the Container Engine or podman-hpc starts. Their modules name
#: the image in the variable, on the host too; pyxis sets none in the image.
ENGINE_IMAGE, RUNSCRIPTS = "PYTORCH_IMAGE", "/runscripts"

#: The directory of the packages that users install on top of an image, and the virtual environment in it.
USER_SOFTWARE = "/user-software"
USER_VENV = "/user-software/venv/pytorch"


def in_container(env):
    """Whether a process with environment `env` is in a container."""
    return any(env.get(name) for name in CONTAINERS) or bool(env.get(ENGINE_IMAGE) and os.path.exists(RUNSCRIPTS))


def bind_variable(env):
    """The variable with the directories that this container sees, None where its runtime has no such variable.

    Apptainer sets the variables of Singularity too, and reads its own name first.
    """
    for runtime in ("APPTAINER", "SINGULARITY"):
        if env.get(f"{runtime}_CONTAINER"):
            return f"{runtime}_BIND"
    return None

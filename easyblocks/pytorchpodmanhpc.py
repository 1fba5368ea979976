# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an image that podman-hpc starts, NERSC's successor of Shifter.

The image is in each user's store, or in one that the site shares: `podman-hpc pull` converts it.
"""
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage
from easybuild.framework.easyconfig import CUSTOM


class EB_PyTorchPodmanHPC(EB_PyTorchImage):
    """Support for installing a module around an image of podman-hpc."""

    ENGINE = 'podman-hpc'
    PARAMETERS = {
        'binds': [[], "Paths of the host to mount, if they exist when the module is loaded", CUSTOM],
        'podman_options': [[], "Options of `podman-hpc run` for every start, such as the site's --gpu", CUSTOM],
    }

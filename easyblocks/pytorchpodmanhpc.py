# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an image that podman-hpc starts, NERSC's successor of Shifter.

The image is in each user's store, or in one that the site shares: `podman-hpc pull` converts it.
"""
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage


class EB_PyTorchPodmanHPC(EB_PyTorchImage):
    """Support for installing a module around an image of podman-hpc."""

    ENGINE = 'podman-hpc'
    PARAMETERS = ('binds', 'podman_options')

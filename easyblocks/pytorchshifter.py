# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an image that stays with the site's Shifter gateway.

Shifter mounts the site's file systems in the image under their own paths, so there are no binds.
"""
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage


class EB_PyTorchShifter(EB_PyTorchImage):
    """Support for installing a module around a Shifter image."""

    ENGINE = 'shifter'
    PARAMETERS = ('shifter_modules',)

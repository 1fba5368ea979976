# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an image that podman-hpc starts, NERSC's successor of Shifter.

The image is in each user's store, or in one that the site shares: `podman-hpc pull` converts it.
"""
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage
from easybuild.framework.easyconfig import CUSTOM

from pytorch_install.interface import mounts_interface, pushenv


class EB_PyTorchPodmanHPC(EB_PyTorchImage):
    """Support for installing a module around an image of podman-hpc."""

    ENGINE = 'podman-hpc'
    PARAMETERS = {
        'binds': [[], "Paths of the host to mount, if they exist when the module is loaded", CUSTOM],
        'podman_options': [[], "Options of `podman-hpc run` for every start, such as the site's --gpu", CUSTOM],
    }

    def enter_image(self):
        # -i: programs come on standard input
        return ['podman-hpc', 'run', '--', '--rm', '-i', '--volume=%s:%s' % (self.installdir, self.installdir),
                self.cfg['image']]

    def launch_in_test(self):
        """The same commands, without GPUs, which login nodes lack."""
        return 'PYTORCH_PODMAN_OPTIONS= ' + super().launch_in_test()

    def make_module_extra(self, *args, **kwargs):
        txt = super().make_module_extra(*args, **kwargs) + mounts_interface(self.module_generator, self.cfg['binds'])
        return txt + pushenv(self.module_generator, {'PYTORCH_IMAGE': self.cfg['image'],
                                                     'PYTORCH_PODMAN_OPTIONS': ' '.join(self.cfg['podman_options'])})

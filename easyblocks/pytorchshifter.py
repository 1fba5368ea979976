# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an image that stays with the site's Shifter gateway.

Shifter mounts the site's file systems in the image under their own paths, so there are no binds.
"""
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage
from easybuild.framework.easyconfig import CUSTOM

from pytorch_install.interface import pushenv


class EB_PyTorchShifter(EB_PyTorchImage):
    """Support for installing a module around a Shifter image."""

    ENGINE = 'shifter'
    PARAMETERS = {
        'shifter_modules': [[], "Shifter's own modules for this image, instead of the site's default", CUSTOM],
    }

    def enter_image(self):
        return ['shifter', '--image=' + self.cfg['image']]

    def make_module_extra(self, *args, **kwargs):
        """Add the image and its modules, in variables that Shifter reads: users can also run a plain `shifter`."""
        # for `#SBATCH --image`, Slurm sets a type that does not fit the name (NERSC/shifter, src/shifter.c)
        variables = {'SHIFTER_IMAGE': self.cfg['image'], 'SHIFTER_IMAGETYPE': 'docker'}
        if self.cfg['shifter_modules']:
            variables['SHIFTER_MODULE'] = ','.join(self.cfg['shifter_modules'])
        return super().make_module_extra(*args, **kwargs) + pushenv(self.module_generator, variables)

##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch in an image that stays with the site's Shifter gateway.

Shifter mounts the site's file systems in the image under their own paths, and passes the environment on, except for
variables that the image sets: so there are no binds, and runscripts are called by their paths.
"""
from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install import tree
from pytorch_install.modulefiles.help import SHIFTER
from pytorch_install.modulefiles.statements import pushenv
from pytorch_install.runtime import run_command


class EB_PyTorchShifter(EB_PyTorchModule):
    """Support for installing a module around a Shifter image."""

    COMMANDS = tree.SHIFTER

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of Shifter images."""
        extra_vars = EB_PyTorchModule.extra_options(extra_vars)
        extra_vars.update({
            'image': [None, "Name of the image at the site's Shifter gateway", MANDATORY],
            'shifter_modules': [[], "Shifter's own modules for this image, instead of the site's default", CUSTOM],
            'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                         "Commands of the image that bin/ offers on the host", CUSTOM],
        })
        return extra_vars

    def runtime_help(self):
        """The Runtime for the module's help; runscripts are called by their paths."""
        return SHIFTER

    def configure_step(self):
        """Check that Shifter has the image."""
        if not which('shifter'):
            raise EasyBuildError("shifter not found on PATH: %s stays with its gateway. Run `eb` on a host "
                                 "with Shifter", self.cfg['image'])
        result = run_command([*self.runtime_python(), '--version'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("Shifter cannot start python3 in %s: %s. Try `shifterimg pull %s`",
                                 self.cfg['image'], ' '.join(result.output.split())[:200], self.cfg['image'])

    def install_runtime(self):
        """Install nothing: the image stays with the gateway."""

    def enter_image(self):
        """Command that runs another one in the image, as a list."""
        return ['shifter', '--image=' + self.cfg['image']]

    def runtime_python(self):
        """The image's Python."""
        return [*self.enter_image(), 'python3']

    def make_module_extra(self, *args, **kwargs):
        """Add the image and its modules, in variables that Shifter reads: users can also run a plain `shifter`."""
        txt = super().make_module_extra(*args, **kwargs)
        # for `#SBATCH --image`, Slurm sets a type that does not fit the name (NERSC/shifter, src/shifter.c)
        variables = {'SHIFTER_IMAGE': self.cfg['image'], 'SHIFTER_IMAGETYPE': 'docker'}
        if self.cfg['shifter_modules']:
            variables['SHIFTER_MODULE'] = ','.join(self.cfg['shifter_modules'])
        for variable, value in variables.items():
            txt += pushenv(self.module_generator, variable, value)
        return txt

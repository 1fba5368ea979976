##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch in an image that stays with the site's Shifter gateway.

Shifter shows the site's file systems in the image under their own paths, and transfers the environment, but for
what the image sets itself: so there are no binds, and runscripts are called by their paths.
"""
import os

from easybuild.easyblocks.pytorchmodule import COMMANDS, EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.modulefiles.text import pushenv
from pytorch_install.runtime_commands import absent_commands, versioned_commands


class EB_PyTorchShifter(EB_PyTorchModule):
    """Support for installing a module around a Shifter image."""

    RUNTIME = "image at the site's Shifter gateway"
    PACKAGES = {'pip install --user <name>': 'into $PYTHONUSERBASE, its commands into $PYTHONUSERBASE/bin',
                'pip uninstall <name>': 'removes it'}

    HELPERS = [*EB_PyTorchModule.HELPERS, 'enter-shifter', 'enter.bash']

    def launch(self, image='$SHIFTER_IMAGE'):  # noqa: ARG002 (the gateway's, whatever the caller binds)
        """Enter the image, in which runscripts are called by their paths."""
        return 'shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/'

    def image_variables(self):
        """The image's name."""
        return {'$SHIFTER_IMAGE': 'the image'}

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of Shifter images."""
        extra_vars = EB_PyTorchModule.extra_options(extra_vars)
        extra_vars.update({
            'image': [None, "Name of the image at the site's Shifter gateway", MANDATORY],
            'shifter_modules': [[], "Shifter's own modules for this image, in place of the site's default", CUSTOM],
            'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                         "Commands of the image that bin/ offers on the host", CUSTOM],
        })
        return extra_vars

    def configure_step(self):
        """Check that Shifter has the image."""
        if not which('shifter'):
            raise EasyBuildError("shifter is not on PATH, and %s stays with its gateway; install where Shifter is",
                                 self.cfg['image'])
        result = run_shell_cmd(self.runtime_python() + ' --version', fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("Shifter cannot start python3 in %s; try `shifterimg pull %s`. It says: %s",
                                 self.cfg['image'], self.cfg['image'], ' '.join(result.output.split())[:200])

    def install_runtime(self):
        """Nothing to install: the image stays where it is."""

    def runtime_python(self):
        """The image's Python."""
        return 'shifter --image=%s python3' % shell_quote(self.cfg['image'])

    def commands(self):
        """On the host every command enters the image first, but for those that look after it."""
        links = super().commands()
        entering = COMMANDS + self.cfg['commands'] + ['start-shell']
        return {**links, **dict.fromkeys(entering, os.path.join(os.pardir, 'libexec', 'enter-shifter'))}

    def check_commands(self):
        """Look for the recipe's commands in the image."""
        enter = 'shifter --image=%s' % shell_quote(self.cfg['image'])
        self.leave_out_absent(enter, self.cfg['commands'])
        versioned = versioned_commands(self.runtime_python(), self.cfg['commands'])
        absent = absent_commands(enter, versioned)
        self.cfg['commands'] = self.cfg['commands'] + [name for name in versioned if name not in absent]

    def make_module_extra(self, *args, **kwargs):
        """Add the image and its modules, in variables that Shifter itself reads: a plain `shifter` is enough too."""
        txt = super().make_module_extra(*args, **kwargs)
        # Slurm sets the type for `#SBATCH --image`, to one that the name does not fit (NERSC/shifter, src/shifter.c)
        variables = {'SHIFTER_IMAGE': self.cfg['image'], 'SHIFTER_IMAGETYPE': 'docker'}
        if self.cfg['shifter_modules']:
            variables['SHIFTER_MODULE'] = ','.join(self.cfg['shifter_modules'])
        for variable, value in variables.items():
            txt += pushenv(self.module_generator, variable, value)
        return txt

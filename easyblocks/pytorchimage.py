# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in images that other programs than Apptainer start: what their easyblocks have in common.

The image sees the installation under the host's path. Its own variables, PATH among them, take precedence over those
of the host: therefore runscripts are called by their paths.
"""
from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM, MANDATORY
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install.modulefiles.help import RUNTIMES
from pytorch_install.runtime import last_line, run_command


class EB_PyTorchImage(EB_PyTorchModule):
    """Shared base of the easyblocks of such images; a subclass names the program."""

    # The name of the program in messages, and advice if it is missing or an image does not start, in which %s is the
    # image; ENGINE is its command.
    PRODUCT = MISSING = NO_START = ''

    PARAMETERS = {
        'image': [None, "Name of the image, as the program that starts it needs it", MANDATORY],
        'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                     "Commands of the image that bin/ offers on the host", CUSTOM],
    }

    def runtime_help(self):
        return RUNTIMES[self.ENGINE]

    def configure_step(self):
        """Check that the program exists, and starts the image."""
        if not which(self.ENGINE):
            raise EasyBuildError("%s not found on PATH: %s", self.ENGINE, self.MISSING.replace('%s', self.cfg['image']))
        self.require_start()

    def require_start(self):
        result = run_command([*self.runtime_python(), '--version'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s cannot start python3 in %s: %s. %s", self.PRODUCT, self.cfg['image'],
                                 last_line(result.output)[:200], self.NO_START.replace('%s', self.cfg['image']))

    def install_runtime(self):
        """Install nothing: the image stays where the program has it."""

    def runtime_python(self):
        return [*self.enter_image(), 'python3']

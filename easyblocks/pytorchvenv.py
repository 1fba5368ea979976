##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
EasyBuild support for PyTorch in a virtual environment, installed offline from locked wheels.
"""
import os

from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote


class EB_PyTorchVenv(EB_PyTorchModule):
    """Support for installing PyTorch as a virtual environment."""

    def __init__(self, *args, **kwargs):
        """Put the environment's own commands on the user's path."""
        super().__init__(*args, **kwargs)
        self.module_load_environment.PATH = ['bin', 'venv/bin']

    def configure_step(self):
        """Check for the Python that the wheels are locked for."""
        if not self.lock:
            raise EasyBuildError("%s names no requirements lock (*.txt) in 'sources'", self.cfg.path)
        if not which(self.host_python):
            raise EasyBuildError("%s is not on PATH, and the wheels are locked for it; load a module that has it, or "
                                 "lock the requirements for another version and set 'python_version'", self.host_python)

    @property
    def host_python(self):
        """Command name of the Python that the environment is made with."""
        return 'python' + self.cfg['python_version']

    def install_runtime(self):
        """Make the environment and install the locked wheels into it, without a network."""
        venv = shell_quote(os.path.join(self.installdir, 'venv'))
        # the host's packages come last; without them pip would refuse `install --user`
        run_shell_cmd("%s -m venv --system-site-packages %s" % (self.host_python, venv))
        # nothing of the user's pip configuration, and nothing left out because the host has it
        run_shell_cmd("%s/bin/pip --isolated install --quiet --ignore-installed --no-index --find-links %s "
                      "--require-hashes --no-deps -r %s"
                      % (venv, shell_quote(self.wheels), shell_quote(self.lock)))

    def runtime_python(self):
        """The environment's Python."""
        return shell_quote(os.path.join(self.installdir, 'venv', 'bin', 'python'))

    def activation(self):
        """Activate with the environment's own script."""
        activate = os.path.join(self.installdir, 'venv', 'bin', 'activate')
        return {'WITH_CONDA': 'true', 'WITH_VENV': 'source ' + activate}

    def sanity_check_step(self, *args, **kwargs):
        """Check the environment's Python too."""
        super().sanity_check_step(*args, custom_paths=['venv/bin/python'], **kwargs)

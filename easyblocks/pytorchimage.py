# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in images that other programs than Apptainer start: a table of them, and what their
easyblocks have in common.

The image sees the installation under the host's path. Its own variables, PATH among them, take precedence over those
of the host: therefore runscripts are called by their paths.
"""
import collections

from easybuild.easyblocks.generic.containerimage import last_line, run_command
from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.framework.easyconfig import MANDATORY
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install.parameters import COMMANDS

MOUNTS = 'More directories in the image: export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data'


# A program that starts images: its name in messages, the prefix of a command to launch, lines of the module's help, and
# advice if an image does not start, and if the host lacks the program; in the last two, %s is the image.
Engine = collections.namedtuple('Engine', 'product launch notes no_start missing')

# By their commands; the Container Engine is a part of Slurm.
ENGINES = {
    'shifter': Engine(
        'Shifter', 'shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/', (),
        no_start="Try `shifterimg pull %s`", missing="%s stays with its gateway. Run `eb` on a host with Shifter"),
    # bin/ has the runscripts under their names, which enter the image
    'podman-hpc': Engine(
        'podman-hpc', '', (MOUNTS,),
        no_start="Try `podman-hpc pull %s`", missing="it starts %s. Run `eb` on a host with podman-hpc"),
    # pyxis starts the image in its own working directory
    'enroot': Engine(
        'enroot', '--container-image=$PYTORCH_IMAGE --container-mounts=$PYTORCH_MOUNTS,$PWD --container-workdir=$PWD '
                  '$RUNSCRIPTS/', (MOUNTS,),
        no_start="Try `enroot start` with the image by hand", missing=''),
    'container-engine': Engine(
        'The Container Engine', '--environment=$PYTORCH_EDF $RUNSCRIPTS/', (),
        no_start="Run `eb` on a system of CSCS, in a job or with SLURM_ACCOUNT set", missing=''),
}


class EB_PyTorchImage(EB_PyTorchModule):
    """Shared base of the easyblocks of such images; ENGINE is a row of the table."""

    PARAMETERS = {
        'image': [None, "Name of the image, as the program that starts it needs it", MANDATORY],
        **COMMANDS,
    }

    @property
    def launch(self):
        return ENGINES[self.ENGINE].launch

    @property
    def notes(self):
        return (*ENGINES[self.ENGINE].notes, *super().notes)

    def configure_step(self):
        """Check that the program exists, and starts the image."""
        if not which(self.ENGINE):
            raise EasyBuildError("%s not found on PATH: %s", self.ENGINE,
                                 ENGINES[self.ENGINE].missing.replace('%s', self.cfg['image']))
        self.require_start()

    def require_start(self):
        engine, image = ENGINES[self.ENGINE], self.cfg['image']
        result = run_command([*self.runtime_python(), '--version'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s cannot start python3 in %s: %s. %s", engine.product, image,
                                 last_line(result.output)[:200], engine.no_start.replace('%s', image))

    def install_runtime(self):
        """Install nothing: the image stays where the program has it."""

    def runtime_python(self):
        return [*self.enter_image(), 'python3']

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
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which

from pytorch_install import interface, tree

# A program that starts images: its name in messages, a command that runs others in the image, the prefix of a command
# to launch, the module's variables, advice if an image does not start, and whether it mounts what PYTORCH_MOUNTS
# lists. See `values` for what is filled in.
Engine = collections.namedtuple('Engine', 'product start launch variables no_start mounts', defaults=(False,))

# By their commands; the Container Engine is a part of Slurm.
ENGINES = {
    'shifter': Engine(
        'Shifter', 'shifter --image=%(image)s', 'shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/',
        # for `#SBATCH --image`, Slurm sets a type that does not fit the name (NERSC/shifter, src/shifter.c)
        {'SHIFTER_IMAGE': '%(image)s', 'SHIFTER_IMAGETYPE': 'docker', 'SHIFTER_MODULE': '%(shifter_modules)s'},
        "Try `shifterimg pull %(image)s`"),
    'podman-hpc': Engine(
        # -i: programs come on standard input
        'podman-hpc', 'podman-hpc run -- --rm -i --volume=%(root)s:%(root)s %(image)s',
        '',  # bin/ has the runscripts under their names, which enter the image
        {'PYTORCH_IMAGE': '%(image)s', 'PYTORCH_PODMAN_OPTIONS': '%(podman_options)s'},
        "Try `podman-hpc pull %(image)s`", mounts=True),
    'enroot': Engine(
        'enroot', 'enroot start --rc %(rc)s --mount %(root)s:%(root)s:none:x-create=auto,rbind %(image)s',
        # pyxis starts the image in its own working directory
        '--container-image=$PYTORCH_IMAGE --container-mounts=$PYTORCH_MOUNTS,$PWD --container-workdir=$PWD '
        '$RUNSCRIPTS/', {'PYTORCH_IMAGE': '%(file)s'}, "Try `enroot start` with the image by hand", mounts=True),
    'container-engine': Engine(
        'The Container Engine', 'srun --nodes=1 --ntasks=1 --environment=%(image)s',
        '--environment=$PYTORCH_EDF $RUNSCRIPTS/', {'PYTORCH_IMAGE': '%(file)s', 'PYTORCH_EDF': '%(image)s'},
        "Run `eb` on a system of CSCS, in a job or with SLURM_ACCOUNT set"),
}


class EB_PyTorchImage(EB_PyTorchModule):
    """Shared base of the easyblocks of such images; ENGINE is a row of the table."""

    PARAMETERS = ('commands', 'image')
    REQUIRED = ('image',)

    # Path of the image, if it is a file of the installation.
    image_path = ''

    launch = property(lambda self: ENGINES[self.ENGINE].launch)

    @property
    def notes(self):
        """The variable for mounts, if the program has one, besides pip."""
        if not ENGINES[self.ENGINE].mounts:
            return super().notes
        return ('More directories in the image: export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data', *super().notes)

    @property
    def started(self):
        """What the program takes as the image."""
        return self.cfg['image']

    def values(self):
        """What is filled in for a row of the table."""
        return {'image': self.started, 'file': self.image_path, 'root': self.installdir, 'rc': tree.ENROOT_RC,
                'shifter_modules': ','.join(self.cfg.get('shifter_modules', [])),
                'podman_options': ' '.join(self.cfg.get('podman_options', []))}

    def configure_step(self):
        """Check that the program exists, and starts the image."""
        if not which(self.ENGINE):
            raise EasyBuildError("%s not found on PATH: it starts %s. Run `eb` on a host with %s", self.ENGINE,
                                 self.cfg['image'], ENGINES[self.ENGINE].product)
        self.require_start()

    def require_start(self):
        """Stop unless the program starts the image."""
        engine = ENGINES[self.ENGINE]
        result = run_command([*self.runtime_python(), '--version'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s cannot start python3 in %s: %s. %s", engine.product, self.cfg['image'],
                                 last_line(result.output)[:200], engine.no_start % self.values())

    def build_step(self):
        """Build nothing."""

    def install_runtime(self):
        """Install nothing: the image stays where the program has it."""

    def runtime_python(self):
        """The image's Python."""
        values = self.values()
        return [*(word % values for word in ENGINES[self.ENGINE].start.split()), 'python3']

    def values_without_module(self):
        """Also the image."""
        return dict(super().values_without_module(), image=self.started)

    def launch_in_test(self):
        """bin/ starts the image without srun, here without GPUs, which login nodes lack."""
        return 'PYTORCH_PODMAN_OPTIONS= '

    def make_module_extra(self, *args, **kwargs):
        """Add the image, what it sees of the host, and the program's own settings if the recipe has any."""
        generator, values = self.module_generator, self.values()
        variables = {name: value % values for name, value in ENGINES[self.ENGINE].variables.items()}
        txt = super().make_module_extra(*args, **kwargs) + self.shared_statements()
        if ENGINES[self.ENGINE].mounts:
            txt += interface.template(generator, 'mounts', {'binds': self.cfg['binds']}, **interface.places())
        return txt + interface.pushenv(generator, {name: value for name, value in variables.items() if value})

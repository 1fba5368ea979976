# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an Apptainer or Singularity image (SIF).

The image is a source that ends in .sif, or is built from one that ends in .def (definition file) or .yml (conda
environment for cotainr), or is what `image` names: a registry's image, or a file that the site provides. With a
container module among the build dependencies, it is that module's image with the packages of a lock on top.
"""
import os

from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import which
from easybuild.tools.modules import get_software_root

from pytorch_install import built_images
from pytorch_install.images import InstalledImage, write_provenance
from pytorch_install.interface import image_interface
from pytorch_install.parameters import containerimage
from pytorch_install.runtime import in_image
from pytorch_install.source_packages import SourcePackageSteps
from pytorch_install.user_software import UserSoftware


class EB_PyTorchContainer(SourcePackageSteps, InstalledImage, EB_PyTorchModule, containerimage.ContainerImage):
    """Support for installing PyTorch as a container image with a module around it."""

    ENGINE = 'apptainer'
    SITE_FILES = {**containerimage.ContainerImage.SITE_FILES, 'base_image': None}
    SOURCES_OF_IMAGES = "'image', a .sif, .def or .yml file in 'sources', or a container module in 'builddependencies'"

    PARAMETERS = ('base_image', 'commands', 'conda_activation', 'debian_packages', 'debian_release')

    def __init__(self, *args, **kwargs):
        """Find the image's base, and prepare the users' environment."""
        super().__init__(*args, **kwargs)
        if 'signing_key' in self.cfg.unknown_keys:  # for EasyBuild, a local variable with a wrong name: a warning
            raise EasyBuildError("%s: 'signing_key' is no longer a parameter, signatures are not checked. Replace it "
                                 "with the image's SHA-256, in 'checksums' or 'image_checksum'", self.cfg.path)
        self.require_image()
        if self.cfg['source_packages'] and not isinstance(self.image, built_images.BuiltImage):
            raise EasyBuildError("%s has 'source_packages', which are built in an image that is made here, or on top "
                                 "of an installed one. Name its module in 'builddependencies'", self.cfg.path)
        self.image.patches = self.patches
        self.user_software = UserSoftware(self.installdir)
        self.users_environment = None
        self.mounted = self.user_software.directory
        self.installation.disposable.append(self.user_software.part)

    def kinds(self):
        return {**super().kinds(), '.def': built_images.DefinitionFile, '.yml': built_images.Cotainr}

    def named_kinds(self):
        """Also the image of a build dependency, on which a definition file can be built too."""
        kinds = super().named_kinds()
        if all(record['name'] == self.cfg['base_image'] for record in self.records if record['name'].endswith('.sif')):
            kinds.pop('.sif', None)  # the base of a conda environment is not the image
        base = built_images.base_dependency(self.cfg)
        if base and '.def' not in kinds:
            kinds[base] = built_images.PackagesOnTop
        return kinds

    def prepare_step(self, *args, **kwargs):
        """Find the base with its module, and unload that: its binds and settings are not those of this image."""
        super().prepare_step(*args, **kwargs)
        module = built_images.base_dependency(self.cfg)
        if module:
            self.image.base = built_images.read_base(module, get_software_root(self.name), os.environ.get('SIF'))
            self.modules_tool.unload([module])

    def configure_step(self):
        """Check for a container runtime before the long steps; compare with the base, which is known now."""
        super().configure_step()
        if built_images.base_dependency(self.cfg):
            self.fetch_image()

    def build_step(self):
        """Build the image, unless it is a file already or the installed one is the same."""
        if not self.image.is_kept:
            self.image.wheels, self.image.parallel = self.wheels, self.cfg.parallel
            self.image.packages = [(package, self.unpacked(package)['finalpath']) for package in self.source_packages]
            self.image.build()

    def complete_runtime(self):
        """Write the image's provenance."""
        write_provenance(self.image, self.image_path, self.python('--cleanenv'), ['--version'])

    def install_tree(self):
        """Also make the users' virtual environment, with the installed image."""
        super().install_tree()
        self.users_environment = self.user_software.prepare(self.runtime_python())

    def values_without_module(self):
        runtime = containerimage.find_runtime()
        return {**super().values_without_module(), 'image': self.image.name,
                'central': [os.path.join(directory, self.image.name) for directory in self.cfg['central_images']],
                'conda': self.cfg['conda_activation'], 'user_software': self.user_software.directory,
                'runtime': runtime and which(runtime)}

    def complete(self):
        """Put the users' virtual environment in place."""
        self.user_software.finish(self.users_environment)

    def python(self, *options):
        """The image's Python, that of its conda environment if it has one."""
        return [*in_image(self.image.runtime, self.image_path, self.cfg['conda_activation'], *options), 'python3']

    def runtime_python(self):
        """It sees the installation directory."""
        return self.python('--bind', self.installdir)

    @property
    def launch(self):
        """With the command of this host."""
        return (containerimage.find_runtime() or containerimage.RUNTIMES[0]) + ' exec $SIF '

    @property
    def notes(self):
        is_built = isinstance(self.image, built_images.BuiltImage)
        return ('`%s` starts %s' % (
                    self.launch.strip().replace('exec', 'run'),
                    'a command, or Python without one' if is_built else 'its own entrypoint, if it has one'),
                # Apptainer has its own variable, even if its command is singularity
                'More directories in the image: export %s_BIND=/data' % (
                    'APPTAINER' if which('apptainer') else 'SINGULARITY'),
                '`pip install <name>` installs into $CONTAINERROOT/user-software; with --user, if you cannot write '
                'there, into $PYTHONUSERBASE')

    def launch_in_test(self):
        """Also bind EasyBuild's temporary directory, which may not be visible in a container."""
        return self.launch.replace('$SIF', '--bind "$TMPDIR" "$SIF"')

    def make_module_step(self, fake=False):
        """Let the sanity check's module bind the new users' environment, which is not in place yet."""
        self.mounted = self.user_software.part if fake else self.user_software.directory
        return super().make_module_step(fake=fake)

    def image_statements(self):
        """None here: PyTorch's are after those that all its modules share."""
        return ''

    def make_module_extra(self, *args, **kwargs):
        return super().make_module_extra(*args, **kwargs) + image_interface(
            self.module_generator, self.cfg, self.image.name, self.mounted)

    def activation(self):
        """The image's conda environment; the module finds user-software when it is loaded."""
        # the second is for scripts written for LUMI's modules, which run it in the image
        return {'WITH_CONDA': self.cfg['conda_activation'], 'WITH_CONDA_VENV': 'source /runscripts/init-conda-venv'}

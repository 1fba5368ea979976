# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an Apptainer or Singularity image (SIF).

The image is a source that ends in .sif, or is built from one that ends in .def (definition file) or .yml (conda
environment for cotainr), or is what `image` names: a registry's image, or a file that the site provides. With a
container module among the build dependencies, it is that module's image with the packages of a lock on top.
"""
import os

from easybuild.easyblocks.generic.lockedvenv import fetch_wheels, wheel_directories
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
    SOURCES_OF_IMAGES = "'image', a .sif, .def or .yml file in 'sources', or a container module in 'builddependencies'"

    PARAMETERS = ('base_image', 'central_images', 'commands', 'conda_activation', 'debian_packages', 'debian_release')

    def __init__(self, *args, **kwargs):
        """Find the image's base, and prepare the users' environment."""
        super().__init__(*args, **kwargs)
        self.require_image()
        if self.cfg['source_packages'] and not isinstance(self.image, built_images.BuiltImage):
            raise EasyBuildError("%s has 'source_packages', which are built in an image that is made here, or on top "
                                 "of an installed one. Name its module in 'builddependencies'", self.cfg.path)
        self.user_software = UserSoftware(self.installdir)
        self.users_environment = None
        self.mounted = self.user_software.directory
        self.installation.disposable.append(self.user_software.part)

    def kinds(self):
        """Also those that are built with PyTorch's own layout."""
        kinds = super().kinds()
        kinds['.def'] = built_images.DefinitionFile
        kinds['.yml'] = built_images.Cotainr
        return kinds

    def named_kinds(self):
        """Also the image of a build dependency, on which a definition file can be built too."""
        kinds = super().named_kinds()
        if all(record['name'] == self.cfg['base_image'] for record in self.records if record['name'].endswith('.sif')):
            kinds.pop('.sif', None)  # the base of a conda environment is not the image
        base = built_images.base_dependency(self.cfg)
        if base and '.def' not in kinds:
            kinds[base] = built_images.PackagesOnTop
        return kinds

    def site_files(self):
        """Also the base image of cotainr, if it is a file."""
        files = super().site_files()
        base = self.cfg['base_image']
        if base and '://' not in base and base not in containerimage.source_names(self.cfg):
            files[base] = None
        return files

    def obtain_file(self, filename, **kwargs):
        """Search images in the site's directories first, without copying them to the source path."""
        for directory in self.cfg['central_images']:
            path = os.path.join(directory, filename)
            if filename.endswith('.sif') and os.path.isfile(path):
                return path
        return super().obtain_file(filename, **kwargs)

    def fetch_step(self, skip_checksums=False):
        """Also fetch the wheels of the lock."""
        super().fetch_step(skip_checksums=skip_checksums)
        if self.lock and not skip_checksums:
            self.wheels = fetch_wheels(self.lock['path'], wheel_directories(self.name), self.cfg['python_version'],
                                       self.cfg['wheel_index'])

    def prepare_step(self, *args, **kwargs):
        """Find the base with its module, and unload that: its binds and settings are not those of this image."""
        super().prepare_step(*args, **kwargs)
        module = built_images.base_dependency(self.cfg)
        if module:
            self.image.base = built_images.read_base(module, get_software_root(self.name), os.environ.get('SIF'))
            self.modules_tool.unload([module])

    def build_step(self):
        """Build the image, unless it is a file already or the installed one is the same."""
        if not self.image.is_kept:
            self.image.build()

    def complete_runtime(self):
        """Write the image's provenance."""
        write_provenance(self.image, self.image_path, self.python('--cleanenv'), ['--version'])

    def install_tree(self):
        """Also make the users' virtual environment, with the installed image."""
        super().install_tree()
        self.users_environment = self.user_software.prepare(self.runtime_python())

    def values_without_module(self):
        """Also the image, where copies of it are, and what starts it."""
        values = super().values_without_module()
        values['image'] = self.image.name
        values['central'] = [os.path.join(directory, self.image.name) for directory in self.cfg['central_images']]
        values['conda'] = self.cfg['conda_activation']
        values['user_software'] = self.user_software.directory
        runtime = containerimage.find_runtime()
        values['runtime'] = runtime and which(runtime)
        return values

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
        return '%s exec $SIF ' % (containerimage.find_runtime() or containerimage.RUNTIMES[0])

    @property
    def notes(self):
        """The variable for binds, besides pip."""
        # Apptainer has its own variable, even if its command is singularity
        prefix = 'APPTAINER' if which('apptainer') else 'SINGULARITY'
        return ('More directories in the image: export %s_BIND=/data' % prefix,
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
        """Those that all PyTorch modules share, then PyTorch's own for an image, which read the cluster profile's."""
        own = image_interface(self.module_generator, self.cfg, self.image.name, self.mounted)
        return self.shared_statements() + own

    def activation(self):
        """The image's conda environment; the module finds user-software when it is loaded."""
        # the second is for scripts written for LUMI's modules, which run it in the image
        return {'WITH_CONDA': self.cfg['conda_activation'], 'WITH_CONDA_VENV': 'source /runscripts/init-conda-venv'}

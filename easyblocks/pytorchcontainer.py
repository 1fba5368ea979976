# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in an Apptainer or Singularity image (SIF).

The image is a source that ends in .sif, or is built from one that ends in .def (definition file) or .yml (conda
environment for cotainr), or is what `image` names: a registry's image, or a file that the site provides. With a
container module among the build dependencies, it is that module's image with the packages of a lock on top.
"""
import os

from easybuild.easyblocks.pytorchmodule import EB_PyTorchModule
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import which
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version
from easybuild.tools.modules import get_software_root

from pytorch_install import tree
from pytorch_install.engine.transaction import keep_file
from pytorch_install.images import container_runtime
from pytorch_install.images.base import base_dependency, read_base
from pytorch_install.images.fetch import fetch_image
from pytorch_install.images.kinds import image_source
from pytorch_install.images.provenance import write_provenance
from pytorch_install.images.sif import require_file
from pytorch_install.images.source import install_image
from pytorch_install.images.spec import PARAMETERS, ImageSpec
from pytorch_install.modulefiles.help import container
from pytorch_install.modulefiles.interface import image_interface
from pytorch_install.users.user_software import UserSoftware
from pytorch_install.venvs.build_steps import SourcePackageSteps


class EB_PyTorchContainer(SourcePackageSteps, EB_PyTorchModule):
    """Support for installing PyTorch as a container image with a module around it."""

    COMMANDS = tree.CONTAINER
    BRINGS_PYTHON = True

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of images."""
        extra_vars = EB_PyTorchModule.extra_options(extra_vars)
        extra_vars.update(SourcePackageSteps.PARAMETERS)
        extra_vars.update({
            'image': [None, "Image that is not a source: docker:// with digest, or a .sif file in central_images",
                      CUSTOM],
            'image_checksum': [None, "SHA-256 of that .sif file; by default, that of the first installation", CUSTOM],
            'central_images': [[], "Directories of the site with images, by their file names", CUSTOM],
            'base_image': [None, "Base image of cotainr's conda environment: a .sif file, or docker:// with digest",
                           CUSTOM],
            'binds': [[], "Paths of the host to bind, if they exist when the module is loaded", CUSTOM],
            'conda_activation': ['true', "Command that activates the image's conda environment, unless the image "
                                         "sets WITH_CONDA", CUSTOM],
            'debian_release': [None, "Debian release for the definition file's base image", CUSTOM],
            'debian_packages': [[], "Debian packages in that base image", CUSTOM],
            'commands': [['python', 'python3', 'pip', 'pip3', 'torchrun'],
                         "Commands of the image that bin/ offers on the host", CUSTOM],
            # every start decompresses what it reads: gzip, the default, is a third smaller and the slowest to read;
            # the table of fragments (small files packed together) displaces directories from the kernel's cache
            'mksquashfs_args': ['-comp lz4 -no-fragments', "Packing of an image built here", CUSTOM],
        })
        return extra_vars

    def __init__(self, *args, **kwargs):
        """Find the image's source."""
        super().__init__(*args, **kwargs)
        if 'signing_key' in self.cfg.unknown_keys:  # for EasyBuild, a local variable with a wrong name: a warning
            raise EasyBuildError("%s: 'signing_key' is no longer a parameter, signatures are not checked. Replace it "
                                 "with the image's SHA-256, in 'checksums' or 'image_checksum'", self.cfg.path)
        self.site_file = None
        self.base_module = base_dependency(self.cfg, self.name)
        self.base = None
        source = image_source(self.image_spec)
        # with --module-only, no step fetches the image
        self.image = source.expect_image()
        self.image_name = source.name
        self.user_software = UserSoftware(self.installdir)
        self.users_environment = None
        self.mounted = self.user_software.directory
        self.installation.disposable.append(self.user_software.part)
        self.installation.keeps_replaced = True

    @property
    def image_spec(self):
        """The recipe's image, with the files that are known at this step."""
        values = {name: self.cfg[name] for name in PARAMETERS}
        return ImageSpec(easyconfig=self.cfg.path, software=self.name, builddir=self.builddir, sources=self.sources,
                         name='%s-%s.sif' % (self.name, det_full_ec_version(self.cfg)), wheels=self.wheels,
                         site_file=self.site_file, base_module=self.base_module, base=self.base,
                         runtime=container_runtime.find_runtime(),
                         **{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    @property
    def image_path(self):
        """Path of the installed image."""
        return os.path.join(self.installdir, self.image_name)

    def checksum_step(self):
        """Verify the sources, then fetch the image or its base, unless the installed image is the same."""
        super().checksum_step()
        source = image_source(self.image_spec)
        self.image = source.expect_image()
        if self.dry_run:
            return
        wanted = source.wanted_file
        if wanted:
            self.site_file = (wanted if os.path.dirname(wanted)
                              else self.obtain_file(wanted, no_download=True, warning_only=True))
            require_file(self.site_file, wanted, self.cfg['central_images'])
        self.find_image()

    def find_image(self):
        """Fetch the image or what it is made of, unless the installed one is the same."""
        self.image = fetch_image(self.image_spec,
                                 None if build_option('force') else self.installation.before(self.image_name))

    def obtain_file(self, filename, **kwargs):
        """Search images in the site's directories first, without copying them to the source path."""
        for directory in self.cfg['central_images'] if filename.endswith('.sif') else []:
            if os.path.isfile(os.path.join(directory, filename)):
                return os.path.join(directory, filename)
        return super().obtain_file(filename, **kwargs)

    def prepare_step(self, *args, **kwargs):
        """Find the base with its module, and unload that: its binds and settings are not those of this image."""
        super().prepare_step(*args, **kwargs)
        if self.base_module and not self.dry_run:
            self.base = read_base(self.base_module, get_software_root(self.name), os.environ.get('SIF'))
            self.modules_tool.unload([self.base_module])

    def configure_step(self):
        """Check for a container runtime before the long steps; compare with the base, which is known now."""
        container_runtime.require_runtime(container_runtime.find_runtime())
        if self.base:
            self.find_image()

    def build_step(self):
        """Build the image, unless it is a file already or the installed one is the same."""
        if self.base_module and self.dry_run:
            self.dry_run_msg("  packages of %s", self.image.reference)
        elif not self.image.is_kept:
            packages = tuple((package, self.unpacked(package)['finalpath']) for package in self.source_packages)
            spec = self.image_spec._replace(packages=packages, parallel=self.cfg.parallel)
            image_source(spec).build(self.image)

    def install_runtime(self):
        """Install the image and its provenance."""
        if self.dry_run:
            self.dry_run_msg("  copied image %s to %s", self.image.reference, self.image_path)
            return
        if self.image.is_kept:
            keep_file(self.installation.before(self.image_name), self.image_path)
        else:
            self.image = install_image(self.image, self.image_path)
        write_provenance(self.image_spec, self.image, self.image_path)

    def install_tree(self):
        """Also make the users' virtual environment, with the installed image."""
        super().install_tree()
        if not self.dry_run:
            self.users_environment = self.user_software.prepare(self.runtime_python())

    def values_without_module(self):
        """Also the installed image, its copies, and the users' environment."""
        runtime = container_runtime.find_runtime()
        return {**super().values_without_module(), 'image': self.image_name,
                'central': [os.path.join(directory, self.image_name) for directory in self.cfg['central_images']],
                'conda': self.cfg['conda_activation'], 'user_software': self.user_software.directory,
                'runtime': runtime and which(runtime)}

    def complete(self):
        """Put the users' virtual environment in place, and write the checksum that later installations compare with."""
        self.user_software.finish(self.users_environment, self.short_mod_name)
        image_source(self.image_spec).note_installed(self.image)

    def enter_image(self):
        """Command that runs another one in the installed image, as a list."""
        return [container_runtime.find_runtime(), 'exec', self.image_path]

    def runtime_python(self):
        """The image's Python, that of its conda environment if it has one; it sees the installation directory."""
        return container_runtime.image_python(container_runtime.find_runtime(), self.image_path,
                                              self.cfg['conda_activation'], '--bind', self.installdir)

    def runtime_help(self):
        """The Runtime for the module's help, with the commands of this host."""
        return container(container_runtime.find_runtime() or container_runtime.RUNTIMES[0],
                         'APPTAINER_BIND' if which('apptainer') else 'SINGULARITY_BIND')

    def launch_in_test(self):
        """Also bind EasyBuild's temporary directory, which may not be visible in a container."""
        return self.runtime_help().launch.replace('$SIF', '--bind "$TMPDIR" "$SIF"')

    def make_module_step(self, fake=False):
        """Let the sanity check's module bind the new users' environment, which is not in place yet."""
        prepared = fake and os.path.isdir(self.user_software.part)
        self.mounted = self.user_software.part if prepared else self.user_software.directory
        return super().make_module_step(fake=fake)

    def make_module_extra(self, *args, **kwargs):
        """Add the image, its binds and its search path."""
        # a moved installation must be visible under its real path
        moved = [os.path.realpath(self.installdir)] if os.path.islink(self.installdir) else []
        return super().make_module_extra(*args, **kwargs) + image_interface(
            self.module_generator, self.cfg, self.image_name, [*self.cfg['binds'], *moved], self.mounted)

    def activation(self):
        """The image's conda environment; the module finds user-software when it is loaded."""
        # the second is for scripts written for LUMI's modules, which run it in the image
        return {'WITH_CONDA': self.cfg['conda_activation'], 'WITH_CONDA_VENV': 'source /runscripts/init-conda-venv'}

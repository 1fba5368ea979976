# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a squashfs image, which enroot imports from a registry by its digest.

Users start it with pyxis (`srun --container-image`). On a host without pyxis, bin/ starts it with enroot.
"""
import os

from easybuild.easyblocks.pytorchimage import EB_PyTorchImage
from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.config import build_option
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version

from pytorch_install import tree
from pytorch_install.engine.transaction import keep_file
from pytorch_install.images.kinds import EnrootImage, require_enroot
from pytorch_install.images.provenance import fetch_unless_kept, write_provenance
from pytorch_install.modulefiles.interface import mounts_interface


class EB_PyTorchEnroot(EB_PyTorchImage):
    """Support for installing a squashfs image with a module around it."""

    ENGINE = PRODUCT = 'enroot'
    NO_START = "Try `enroot start` with the image by hand"

    PARAMETERS = {
        'binds': [[], "Paths of the host to mount, if they exist when the module is loaded", CUSTOM],
        'mksquashfs_args': ['-comp lz4 -no-fragments', "Packing of the image", CUSTOM],
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        name = '%s-%s%s' % (self.name, det_full_ec_version(self.cfg), EnrootImage.EXTENSION)
        self.image = EnrootImage(self.cfg, name, [], self.builddir)
        self.installation.keeps_replaced = True

    @property
    def image_path(self):
        return os.path.join(self.installdir, self.image.name)

    def checksum_step(self):
        """Import the image, unless the installed one is the same."""
        super().checksum_step()
        if not self.dry_run:
            fetch_unless_kept(self.image, None if build_option('force') else
                              self.installation.before(self.image.name))

    def configure_step(self):
        """Check for enroot; the image starts when it is installed."""
        require_enroot(self.cfg['image'])

    def install_runtime(self):
        """Install the image and its provenance, and start it."""
        if self.dry_run:
            self.dry_run_msg("  copied image %s to %s", self.cfg['image'], self.image_path)
            return
        if self.image.is_kept:
            keep_file(self.installation.before(self.image.name), self.image_path)
        else:
            self.image.install(self.image_path)
        self.require_start()
        write_provenance(self.image, self.image_path, self.runtime_python(), ['version'])

    def enter_image(self):
        """Command that runs another one in the installed image, as a list; it sees the installation directory."""
        mount = '%s:%s:none:x-create=auto,rbind' % (self.installdir, self.installdir)
        return ['enroot', 'start', '--rc', tree.ENROOT_RC, '--mount', mount, self.image_path]

    def values_without_module(self):
        return {**super().values_without_module(), 'image': self.image_path}

    def launch_in_test(self):
        """The same commands without srun: bin/ starts the image with enroot."""
        return ''

    def make_module_extra(self, *args, **kwargs):
        return (super().make_module_extra(*args, **kwargs) + self.installed_file('PYTORCH_IMAGE', self.image_path) +
                self.view_of_host())

    def view_of_host(self):
        """The statement that tells the program what the image sees of the host."""
        return mounts_interface(self.module_generator, self.cfg['binds'])

    def installed_file(self, variable, path):
        """The statement that sets a variable to the path of an installed file."""
        file = {'value': os.path.basename(path), 'pushenv': True}
        return self.module_generator.set_environment(variable, file, relpath=True)

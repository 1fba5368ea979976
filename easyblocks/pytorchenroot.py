# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for PyTorch in a squashfs image, which enroot imports from a registry by its digest.

Users start it with pyxis (`srun --container-image`). On a host without pyxis, bin/ starts it with enroot. For proxies
and logins, configure enroot: its variables and files are not changed here.
"""
import os
import re

from easybuild.easyblocks.generic.containerimage import Registry
from easybuild.easyblocks.pytorchimage import EB_PyTorchImage
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, which

from pytorch_install.images import InstalledImage, write_provenance


class EnrootImage(Registry):
    """An image that `image` names with its digest, imported by enroot."""

    EXTENSION = '.sqsh'
    KIND = 'enroot'
    runtime = 'enroot'

    def require_runtime(self):
        """Stop without enroot."""
        if not which('enroot'):
            raise EasyBuildError("enroot not found on PATH: it imports %s. Run `eb` on a host with enroot",
                                 self.reference)

    def command(self, part, cache):
        """Let enroot download and convert the image."""
        cache = os.environ.get('ENROOT_CACHE_PATH') or cache
        mkdir(cache, parents=True)
        # enroot 3 rejects '@sha256:...'; 3 and 4 take the digest as a tag. Without a host they ask Docker Hub, whose
        # API is not at docker.io (NVIDIA/enroot, src/docker.sh). As in docker, a host has a dot or a port.
        repository = re.sub(r'^([^/]*[.:][^/]*|localhost)/', r'\1#', self.repository)
        repository = re.sub('^docker[.]io#', '', repository)
        return (['enroot', 'import', '--output', part, 'docker://%s:%s' % (repository, self.digest)],
                {'ENROOT_CACHE_PATH': cache, 'ENROOT_SQUASH_OPTIONS': self.recipe['mksquashfs_args']})


class EB_PyTorchEnroot(InstalledImage, EB_PyTorchImage):
    """Support for installing a squashfs image with a module around it."""

    ENGINE = 'enroot'
    PARAMETERS = ('binds', 'mksquashfs_args')

    def __init__(self, *args, **kwargs):
        """Read the image's reference."""
        super().__init__(*args, **kwargs)
        self.image = EnrootImage(self)

    def fetch_step(self, skip_checksums=False):
        """Import the image, unless the installed one is the same."""
        super().fetch_step(skip_checksums=skip_checksums)
        if not skip_checksums:
            self.fetch_image()

    def configure_step(self):
        """Check for enroot; the image starts when it is installed."""
        self.image.require_runtime()

    def complete_runtime(self):
        """Start the image, and write its provenance."""
        self.require_start()
        write_provenance(self.image, self.image_path, self.runtime_python(), ['version'])

    @property
    def started(self):
        """Path of the installed image."""
        return self.image_path

# SPDX-License-Identifier: GPL-2.0-only
"""
Images of registries, pinned by digest, as squashfs files of enroot.

For proxies and logins, configure enroot: its variables and files are not changed here.
"""
import os
import re

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, which

from pytorch_install.images.pull import Pull
from pytorch_install.images.registry import DOCKER_HUB, RegistryImage, file_name

EXTENSION = '.sqsh'

# The first bytes of a squashfs file: https://docs.kernel.org/filesystems/squashfs.html
MAGIC = b'hsqs'


def require_enroot(image):
    """Stop if the host has no enroot."""
    if not which('enroot'):
        raise EasyBuildError("enroot not found on PATH: it imports %s. Run `eb` on a host with enroot", image)


class EnrootImage(RegistryImage):
    """An image that `image` names with its digest, imported by enroot."""

    @property
    def identity(self):
        """The digest, and the packing of layers."""
        return ' '.join(['enroot', self.digest, self.spec.mksquashfs_args])

    def file_in(self, directory):
        """Path of the finished download in a directory."""
        return os.path.join(directory, file_name(self.digest, EXTENSION))

    def require_runtime(self):
        """Stop if the host cannot download the image."""
        require_enroot(self.spec.image)

    def pull(self, alone):
        """The Pull of this image."""
        return EnrootPull(self.reference, self.pinned, 'enroot', self.spec.mksquashfs_args, alone)


def enroot_uri(pinned):
    """
    A reference as enroot takes it.

    enroot 3 rejects '@sha256:...'; 3 and 4 take the digest as a tag. Without a host they ask Docker Hub, whose API is
    not at docker.io (NVIDIA/enroot, src/docker.sh).
    """
    repository = pinned.repository
    if repository.startswith(pinned.host + '/'):
        repository = repository[len(pinned.host) + 1:]
    registry = pinned.host + '#' if pinned.host != DOCKER_HUB else ''
    return 'docker://%s%s:%s' % (registry, repository, pinned.digest)


class EnrootPull(Pull):
    """A download by enroot."""

    def download(self, part, own_cache):
        """Let enroot download and convert the image."""
        cache = os.environ.get('ENROOT_CACHE_PATH') or own_cache
        mkdir(cache, parents=True)
        uri = enroot_uri(self.pinned)
        variables = {'ENROOT_CACHE_PATH': cache, 'ENROOT_SQUASH_OPTIONS': self.packing}
        self.run_until_success(['enroot', 'import', '--output', part, uri], part, variables)
        with open(part, 'rb') as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise EasyBuildError("%s of %s is not a squashfs file. Check `enroot import` by hand", part, uri)

    def reason(self, output):
        """Why an attempt failed."""
        lines = [line for line in output.strip().splitlines() if '[ERROR]' in line]
        if not lines:
            return super().reason(output)
        return re.sub(r'^.*\[ERROR\]\s*', '', lines[-1])

    def stop_if_permanent(self, reason):
        """Stop if another attempt would fail for the same reason."""
        if re.search(r'error code: 404|(?i:manifest.unknown)', reason):
            raise EasyBuildError("Image not found in the registry: %s. Look up its digest, and correct the recipe",
                                 self.reference)
        if re.search('error code: 40[13]', reason):
            raise EasyBuildError("The registry denies this user access to %s. Write a login to enroot's .credentials "
                                 "and run the same `eb` again", self.reference)

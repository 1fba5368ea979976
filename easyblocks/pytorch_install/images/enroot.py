# SPDX-License-Identifier: GPL-2.0-only
"""
Images of registries, pinned by digest, as squashfs files of enroot.

For proxies and logins, configure enroot: its variables and files are not changed here.
"""
import os
import re

from easybuild.easyblocks.generic.containerimage import DOCKER_HUB, registry_host
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, which

from pytorch_install.images.kinds import RegistryImage

# The first bytes of a squashfs file: https://docs.kernel.org/filesystems/squashfs.html
MAGIC = b'hsqs'


def require_enroot(image):
    """Stop if the host has no enroot."""
    if not which('enroot'):
        raise EasyBuildError("enroot not found on PATH: it imports %s. Run `eb` on a host with enroot", image)


class EnrootImage(RegistryImage):
    """An image that `image` names with its digest, imported by enroot."""

    EXTENSION, KIND = '.sqsh', 'enroot'
    runtime = 'enroot'
    FAILURES = (
        (r'error code: 404|(?i:manifest.unknown)',
         "Image not found in the registry: %(image)s. Look up its digest, and correct the recipe"),
        ('error code: 40[13]',
         "The registry denies this user access to %(image)s. Write a login to enroot's .credentials and run the same "
         "`eb` again"),
    )

    def fetch(self):
        """Check for enroot first."""
        require_enroot(self.reference)
        super().fetch()

    def command(self, part, cache):
        """Let enroot download and convert the image."""
        cache = os.environ.get('ENROOT_CACHE_PATH') or cache
        mkdir(cache, parents=True)
        return (['enroot', 'import', '--output', part, enroot_uri(self.repository, self.digest)],
                {'ENROOT_CACHE_PATH': cache, 'ENROOT_SQUASH_OPTIONS': self.recipe['mksquashfs_args']})

    def check_download(self, path):
        """Stop if the download is not a squashfs file."""
        with open(path, 'rb') as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise EasyBuildError("%s of %s is not a squashfs file. Check `enroot import` by hand", path, self.uri)

    def reason(self, output):
        """Why an attempt failed."""
        lines = [line for line in output.strip().splitlines() if '[ERROR]' in line]
        return re.sub(r'^.*\[ERROR\]\s*', '', lines[-1]) if lines else super().reason(output)


def enroot_uri(repository, digest):
    """
    A reference as enroot takes it.

    enroot 3 rejects '@sha256:...'; 3 and 4 take the digest as a tag. Without a host they ask Docker Hub, whose API is
    not at docker.io (NVIDIA/enroot, src/docker.sh).
    """
    host = registry_host(repository)
    repository = repository[len(host) + 1:] if repository.startswith(host + '/') else repository
    return 'docker://%s%s:%s' % (host + '#' if host != DOCKER_HUB else '', repository, digest)

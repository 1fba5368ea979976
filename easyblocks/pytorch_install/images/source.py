# SPDX-License-Identifier: GPL-2.0-only
"""
The base of all kinds of image sources.
"""
import os

from pytorch_install.images.image_files import copy_verified
from pytorch_install.images.spec import Image

# Parameters that decide, besides the sources, what is in an image that is built here.
INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'source_packages', 'mksquashfs_args')


class ImageSource:
    """
    A kind of place that images come from; `spec` is the ImageSpec.

    digest: digest of the registry's manifest ('sha256:<hex>'), which identifies the image before it is fetched; or None
    wanted_file: file name or path of a file of the site that is the image or its base, for `spec.site_file`; or None
    """

    digest = None
    wanted_file = None

    def __init__(self, spec):
        self.spec = spec

    @property
    def name(self):
        """File name of the installed image."""
        return self.spec.name

    @property
    def reference(self):
        """The image's source, as the recipe names it."""
        return ', '.join(source.name for source in self.spec.sources)

    @property
    def identity(self):
        """Text that determines the content; --rebuild keeps an installed image with the same identity."""
        parts = ['%s=%s' % (source.name, source.sha256) for source in self.spec.sources]
        for name in INGREDIENTS:
            value = getattr(self.spec, name)
            if value:
                parts.append('%s=%s' % (name, list(value) if isinstance(value, tuple) else value))
        if self.spec.base:
            parts.append('base=%s' % self.spec.base.checksum)
        return ' '.join(parts)

    def expect_image(self):
        """The Image as it is known before it is fetched."""
        return Image(os.path.join(self.spec.builddir, self.name), self.reference, self.identity, self.digest)

    def fetch(self):
        """Download and verify in EasyBuild's fetch step; return the Image."""
        return self.expect_image()

    def build(self, image):
        """Make `image.file` in the build directory, if the image is made here."""

    def note_installed(self, image):
        """Write what later installations compare with; the image has passed the sanity check."""


def install_image(image, path):
    """Copy an Image to a path, completely or not at all; return it with its checksum."""
    return image._replace(checksum=copy_verified(image.file, path, image.checksum))

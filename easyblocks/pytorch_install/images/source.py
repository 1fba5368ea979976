##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What all kinds of places that an image comes from have in common.
"""
import os

from pytorch_install.images.image_files import copy_verified
from pytorch_install.images.spec import Image

# Parameters that decide, besides the sources, what is in an image that is built here.
INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'mksquashfs_args')


class ImageSource:
    """
    One kind of place that an image comes from; `spec` is the ImageSpec.

    digest: digest of the registry's manifest ('sha256:<hex>'), which identifies the image before it is fetched; or None
    is_made_here: whether the image is built or converted here, so that it has no signature
    wanted_file: file name or path of the site's file that the image is or needs, for `spec.site_file`; or None
    """

    digest = None
    is_made_here = False
    wanted_file = None

    def __init__(self, spec):
        self.spec = spec

    @property
    def name(self):
        """File name of the installed image."""
        return self.spec.name

    @property
    def reference(self):
        """Where the image comes from, in the recipe's words."""
        return ', '.join(source.name for source in self.spec.sources)

    @property
    def identity(self):
        """Text of what the recipe says of the content: where it is the same, --rebuild keeps the image."""
        parts = ['%s=%s' % (source.name, source.sha256) for source in self.spec.sources]
        for name in INGREDIENTS:
            value = getattr(self.spec, name)
            if value:
                parts.append('%s=%s' % (name, list(value) if isinstance(value, tuple) else value))
        return ' '.join(parts)

    def describe(self):
        """The Image as far as it is known before it is fetched."""
        return Image(os.path.join(self.spec.builddir, self.name), self.reference, self.identity, self.digest)

    def fetch(self):
        """Get what needs a network, verified, in EasyBuild's fetch step; return the Image."""
        return self.describe()

    def build(self, image):
        """Make `image.file` in the build directory, if it is made here."""

    def note_installed(self, image):
        """Note what other installations compare with: the image has passed the sanity check."""


def install_image(image, path):
    """Put an Image at a path, at once and whole, or not at all; return it with its checksum."""
    return image._replace(checksum=copy_verified(image.file, path, image.checksum))

# SPDX-License-Identifier: GPL-2.0-only
"""
Fetching a recipe's image, unless the installed one is the same.
"""
from pytorch_install.images.kinds import image_source
from pytorch_install.images.provenance import installed_checksum


def fetch_image(spec, installed=None):
    """
    Fetch the image of an ImageSpec if need be; return the Image.

    :param installed: path of an installed image that may be kept; it need not exist
    """
    source = image_source(spec)
    # a digest in the recipe identifies the image without a download
    image = source.expect_image() if source.digest else source.fetch()
    checksum = installed_checksum(image, installed) if installed else None
    if checksum:
        return image._replace(checksum=checksum, is_kept=True)
    return source.fetch() if source.digest else image

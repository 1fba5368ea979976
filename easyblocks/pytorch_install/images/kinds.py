##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
The kind of image source that a recipe names.
"""
import os

from easybuild.tools.build_log import EasyBuildError

from pytorch_install.images.cotainr import Cotainr
from pytorch_install.images.definition import Definition
from pytorch_install.images.enroot import EXTENSION, EnrootImage
from pytorch_install.images.registry import TRANSPORTS, RegistryImage
from pytorch_install.images.sif import SifSource, SiteFile
from pytorch_install.images.signature import EXTENSIONS

# Kinds of images by the file name extension of the source that they are made from.
BY_EXTENSION = {'.sif': SifSource, '.def': Definition, '.yml': Cotainr}


def image_source(spec):
    """The one ImageSource that an ImageSpec names."""
    given = {extension: kind for extension, kind in BY_EXTENSION.items()
             if any(source.name.endswith(extension) for source in spec.sources)}
    if spec.image:
        given[spec.image] = EnrootImage if spec.name.endswith(EXTENSION) else kind_of(spec.image)
    if len(given) != 1:
        raise EasyBuildError("%s must name one image source, 'image' or a .sif, .def or .yml file in 'sources'; "
                             "found: %s", spec.easyconfig, ', '.join(given) or 'none')
    (kind,) = given.values()
    source = kind(spec)
    if spec.signing_key:
        check_signing_key(spec, source.is_made_here)
    return source


def check_signing_key(spec, is_made_here):
    """Stop if the recipe asks for a signature that cannot be checked."""
    if is_made_here:
        raise EasyBuildError("%s names a 'signing_key', but an image that is built here has no signature. Remove it",
                             spec.easyconfig)
    names = [source.name for source in spec.sources]
    if not (spec.signing_key in names and spec.signing_key.endswith(EXTENSIONS)):
        raise EasyBuildError("signing_key = '%s' in %s must be one of 'sources', with a checksum, and end in %s",
                             spec.signing_key, spec.easyconfig, ' or '.join(EXTENSIONS))


def kind_of(image):
    """The class for a value of the parameter `image`."""
    if image.partition('://')[0] in TRANSPORTS and '://' in image:
        return RegistryImage
    if image.endswith('.sif') and os.path.basename(image) == image:
        return SiteFile
    raise EasyBuildError("image = '%s' is neither a reference (docker://, oras://, library://) nor a file name that "
                         "ends in .sif. The directory of a file belongs in 'central_images'", image)

# SPDX-License-Identifier: GPL-2.0-only
"""
The kind of image source that a recipe names.
"""
import os

from easybuild.tools.build_log import EasyBuildError

from pytorch_install.images.cotainr import Cotainr
from pytorch_install.images.definition import Definition
from pytorch_install.images.enroot import EXTENSION, EnrootImage
from pytorch_install.images.packages_on_top import PackagesOnTop
from pytorch_install.images.registry import DOCKER, RegistryImage
from pytorch_install.images.sif import SifSource, SiteFile

# Kinds of images by the file name extension of the source that they are made from.
BY_EXTENSION = {'.sif': SifSource, '.def': Definition, '.yml': Cotainr}


def image_source(spec):
    """The one ImageSource that an ImageSpec names."""
    given = {extension: kind for extension, kind in BY_EXTENSION.items()
             if any(source.name.endswith(extension) for source in spec.sources)}
    if spec.image:
        given[spec.image] = EnrootImage if spec.name.endswith(EXTENSION) else kind_of(spec.image)
    if spec.base_module and '.def' not in given:  # a definition file can be built on the module's image too
        given[spec.base_module] = PackagesOnTop
    if len(given) != 1:
        raise EasyBuildError("%s must name one image source, 'image', a .sif, .def or .yml file in 'sources', or a "
                             "container module in 'builddependencies'; found: %s", spec.easyconfig,
                             ', '.join(given) or 'none')
    (kind,) = given.values()
    if spec.source_packages and kind is not PackagesOnTop:
        raise EasyBuildError("%s has 'source_packages', which are built on top of an installed image. Name its module "
                             "in 'builddependencies'", spec.easyconfig)
    return kind(spec)


def kind_of(image):
    """The class for a value of the parameter `image`."""
    if image.startswith(DOCKER):
        return RegistryImage
    if image.endswith('.sif') and os.path.basename(image) == image:
        return SiteFile
    raise EasyBuildError("image = '%s' is neither a reference that begins with docker:// nor a file name that ends in "
                         ".sif. Download other images as such a file. The directory of a file belongs in "
                         "'central_images'", image)

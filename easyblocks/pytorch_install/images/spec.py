# SPDX-License-Identifier: GPL-2.0-only
"""
Images as values: what a recipe specifies, and what is fetched or built for it.
"""
from typing import NamedTuple, Optional, Tuple

from easybuild.easyblocks.generic.lockedvenv import Wheels

from pytorch_install.images.base import Base
from pytorch_install.sources.recipe_sources import Source
from pytorch_install.venvs.source_packages import SourcePackage

# Easyconfig parameters with which an ImageSpec is made.
PARAMETERS = ('image', 'image_checksum', 'base_image', 'conda_activation', 'debian_release', 'debian_packages',
              'mksquashfs_args', 'python_version', 'source_packages')


class ImageSpec(NamedTuple):
    """
    The image that a recipe specifies.

    easyconfig: path of the recipe
    software: name of the software, by which EasyBuild's source path is arranged
    name: file name of an image that is made here
    builddir: directory to build in
    sources: the recipe's sources
    runtime: command of the container runtime, None if this host has none
    wheels: locked wheels that the image is built with
    site_file: path of the file that `image` or `base_image` names, on the source path or in central_images
    base_module: name of the installed module whose image is the base, the build dependency of the same software
    base: that module, once EasyBuild has loaded it
    packages: packages to build, as SourcePackage, each with the directory of its unpacked sdist
    parallel: number of parallel compilers

    The others are easyconfig parameters.
    """

    easyconfig: str
    software: str
    name: str
    builddir: str
    sources: Tuple[Source, ...]
    runtime: Optional[str] = None
    wheels: Optional[Wheels] = None
    site_file: Optional[str] = None
    base_module: Optional[str] = None
    base: Optional[Base] = None
    packages: Tuple[Tuple[SourcePackage, str], ...] = ()
    parallel: Optional[int] = None
    image: Optional[str] = None
    image_checksum: Optional[str] = None
    base_image: Optional[str] = None
    conda_activation: str = 'true'
    debian_release: Optional[str] = None
    debian_packages: Tuple[str, ...] = ()
    mksquashfs_args: str = ''
    python_version: str = ''
    source_packages: Tuple[tuple, ...] = ()


class Image(NamedTuple):
    """
    An image that is fetched, or about to be built.

    file: path of the finished image, which gets installed
    reference: its source, as the recipe names it
    identity: text that determines its content; --rebuild keeps an installed image with the same identity
    digest: digest of the registry's manifest ('sha256:<hex>'), or None
    checksum: SHA-256 of the file, None if it is unknown before the image is built
    is_kept: whether the installed image is the same
    """

    file: str
    reference: str
    identity: str
    digest: Optional[str] = None
    checksum: Optional[str] = None
    is_kept: bool = False

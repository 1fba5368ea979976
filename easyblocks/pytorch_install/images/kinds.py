# SPDX-License-Identifier: GPL-2.0-only
"""
The kinds of images of PyTorch: those of the generic easyblock with trusted records, locked wheels and a base.
"""
import os

from easybuild.easyblocks.generic.containerimage import Definition, Image, Registry, SiteFile
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.filetools import read_file, write_file

from pytorch_install.directories import (
    make_directory,
    protect,
    reason_for_distrust,
    require_trust,
    source_directories,
    writable_directory,
)
from pytorch_install.images.base import verify_base
from pytorch_install.images.layout import LAYOUT, with_layout


class RegistryImage(Registry):
    """An image of a registry; a note that other users could have written is not trusted."""

    make_directory = staticmethod(make_directory)
    protect = staticmethod(protect)
    reason_for_distrust = staticmethod(reason_for_distrust)


class SiteImage(SiteFile):
    """A file of the site; without a checksum in the recipe, it is compared with that of the first installation."""

    def fetch(self):
        """Compare the file with the recipe's checksum, or with that of the first installation."""
        super().fetch()
        if not self.recipe['image_checksum']:
            require_trust(self.record, os.path.dirname(self.record))
            recorded = read_file(self.record).split() if os.path.isfile(self.record) else []
            before = recorded[0] if recorded else self.checksum
            if before != self.checksum:
                raise EasyBuildError("%s has changed since the first installation: it has SHA-256 %s; recorded in %s: "
                                     "%s. Restore the earlier image, or accept this one with image_checksum = '%s' in "
                                     "the recipe", self.file, self.checksum, self.record, before, self.checksum)

    @property
    def record(self):
        """Path of the checksum, in sha256sum's format, that the first installation writes on the source path."""
        directories = source_directories(self.recipe['name'], 'images')
        directories.append(writable_directory(directories) or directories[0])
        records = [os.path.join(directory, self.name + '.sha256') for directory in directories]
        return next(filter(os.path.isfile, records), records[-1])

    def note_installed(self):
        """Write the checksum, if neither the recipe nor an earlier installation has it."""
        if self.recipe['image_checksum'] or not self.checksum or os.path.isfile(self.record):
            return
        try:
            make_directory(os.path.dirname(self.record))
            write_file(self.record, '%s  %s\n' % (self.checksum, self.name))
            protect(self.record)
        except (EasyBuildError, OSError) as error:
            print_warning("cannot record the checksum of %s (%s): a changed image will not be detected. To "
                          "detect it, set image_checksum = '%s' in the recipe", self.file, error, self.checksum)


class BuiltImage(Image):
    """
    An image that is made here.

    wheels: locked wheels that it is built with
    base_module: name of the installed module whose image is the base, the build dependency of the same software
    base: that module, once EasyBuild has loaded it
    """

    INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'source_packages', 'mksquashfs_args')
    wheels = base_module = base = None

    @property
    def identity(self):
        """Sources, parameters, layout and base."""
        return '%s layout=%s' % (super().identity, LAYOUT) + (' base=%s' % self.base.checksum if self.base else '')


class DefinitionFile(BuiltImage, Definition):
    """A definition file; its build arguments are BASE and REQUIREMENTS."""

    def definition(self):
        """Text of the definition file, with the layout of all images that are built here."""
        return with_layout(super().definition())

    def arguments(self):
        """The base, and the locked wheels as binds."""
        options = super().arguments()
        if self.base:
            verify_base(self.base)
            options = ['--build-arg', 'BASE=' + self.base.image]
        if self.wheels:
            directory, requirements = os.path.split(self.wheels.requirements)
            # /mnt and /media exist in every Linux image, and are empty
            options += ['--build-arg', 'REQUIREMENTS=' + requirements,
                        '--bind', '%s:/mnt,%s:/media' % (self.wheels.directory, directory)]
        return options

# SPDX-License-Identifier: GPL-2.0-only
"""
Images that are files ending in .sif: a source of the recipe, or provided by the site.
"""
import os

from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import read_file, write_file

from pytorch_install.images.image_files import (
    check_structure,
    checksum_of,
    images_directory,
    require_checksum,
    require_machine,
)
from pytorch_install.images.source import ImageSource
from pytorch_install.runtime import last_line, run_command
from pytorch_install.sources.directories import make_directory, protect, require_trust, source_directories
from pytorch_install.sources.recipe_sources import source_with_extension


def require_file(path, name, central_images):
    """Stop if the site's file was not found."""
    if not path or not os.path.isfile(path):
        raise EasyBuildError("Image not found: %s in central_images (%s) or on EasyBuild's source path (%s). Put "
                             "a copy there, or correct the recipe", name, ', '.join(central_images),
                             ', '.join(source_paths()))


class SifSource(ImageSource):
    """An image that is an EasyBuild source; it keeps its name, which the site's copies have too."""

    @property
    def source(self):
        """The one source."""
        return source_with_extension(self.spec.sources, '.sif', self.spec.easyconfig)

    @property
    def name(self):
        """The name of the source."""
        return self.source.name

    @property
    def identity(self):
        """The file's content, wherever it is."""
        return 'sha256:%s' % self.source.sha256

    def expect_image(self):
        """The file, wherever EasyBuild or the site has it."""
        return super().expect_image()._replace(file=self.source.path, checksum=self.source.sha256)

    def fetch(self):
        """Check the file's structure and machine; EasyBuild has compared its checksum."""
        check_structure(self.source.path)
        require_machine(self.source.path)
        return self.expect_image()


class SiteFile(ImageSource):
    """An image that the site provides under the file name in `image`; it keeps its name."""

    @property
    def name(self):
        """The site's name."""
        return self.spec.image

    reference = wanted_file = name

    def expect_image(self):
        """The site's file, which the install step copies."""
        return super().expect_image()._replace(file=self.spec.site_file or self.name)

    def fetch(self):
        """Compare the file with the recipe's checksum, or with that of the first installation."""
        path = self.spec.site_file
        require_machine(path)  # before reading all of it
        checksum = checksum_of(path)
        if self.spec.image_checksum:
            require_checksum(path, checksum, self.spec.image_checksum)
        check_structure(path)
        if not self.spec.image_checksum:
            self.compare_with_record(checksum)
        return self.expect_image()._replace(identity='sha256:' + checksum, checksum=checksum)

    @property
    def record(self):
        """Path of the checksum, in sha256sum's format, that the first installation writes on the source path."""
        directories = [*source_directories(self.spec.software, 'images'), images_directory(self.spec.software)]
        records = [os.path.join(directory, self.name + '.sha256') for directory in directories]
        return next(filter(os.path.isfile, records), records[-1])

    def compare_with_record(self, checksum):
        """Compare with the checksum of the first installation, if there was one."""
        require_trust(self.record, os.path.dirname(self.record))
        recorded = read_file(self.record).split() if os.path.isfile(self.record) else []
        before = recorded[0] if recorded else checksum
        if before != checksum:
            raise EasyBuildError("%s has changed since the first installation: it has SHA-256 %s; recorded in %s: %s. "
                                 "Restore the earlier image, or accept this one with image_checksum = '%s' in the "
                                 "recipe", self.spec.site_file, checksum, self.record, before, checksum)

    def build(self, image):
        """Start it: if its checksum is unknown, only the runtime detects damage."""
        result = run_command([self.spec.runtime, 'exec', image.file, 'true'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s does not start: %s. Download it again", image.file, last_line(result.output))

    def note_installed(self, image):
        """Write the checksum, if neither the recipe nor an earlier installation has it."""
        if self.spec.image_checksum or not image.checksum or os.path.isfile(self.record):
            return
        try:
            make_directory(os.path.dirname(self.record))
            write_file(self.record, '%s  %s\n' % (image.checksum, self.name))
            protect(self.record)
        except (EasyBuildError, OSError) as error:
            print_warning("cannot record the checksum of %s (%s): a changed image will not be detected. To "
                          "detect it, set image_checksum = '%s' in the recipe",
                          image.file, error, image.checksum)

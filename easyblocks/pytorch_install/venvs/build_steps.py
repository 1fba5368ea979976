# SPDX-License-Identifier: GPL-2.0-only
"""
Mixin with the steps of an easyblock that fetch and unpack the sdists of `source_packages`.
"""
import os

from easybuild.framework.easyconfig import CUSTOM
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import extract_file

from pytorch_install.directories import source_directories, writable_directory
from pytorch_install.venvs.source_packages import SourcePackage


class SourcePackageSteps:
    """For classes that are derived from it first, and then from EB_PyTorchModule."""

    PARAMETERS = {
        'source_packages': [[], "Packages to build from sdists among the sources, in this order: tuples of name and "
                                "environment variables of the build", CUSTOM],
    }

    def __init__(self, *args, **kwargs):
        """Find the sdists."""
        super().__init__(*args, **kwargs)
        self.source_packages = [SourcePackage(name, environment, [source['name'] for source in self.records])
                                for name, environment in self.cfg['source_packages']]

    def fetch_step(self, *args, **kwargs):
        """Fetch missing sdists with pip, unless the recipe has source_urls."""
        if not (self.dry_run or self.cfg['source_urls']):
            for package in self.source_packages:
                if not self.obtain_file(package.sdist, no_download=True, warning_only=True):
                    index = [source['name'] for source in self.records].index(package.sdist)
                    checksum = self.get_checksum_for(self.cfg['checksums'], filename=package.sdist, index=index)
                    package.fetch(writable_directory(source_directories(self.name)) or source_paths()[0],
                                  checksum[package.sdist] if isinstance(checksum, dict) else checksum)
        super().fetch_step(*args, **kwargs)

    def extract_step(self):
        """Unpack each sdist into a directory of its own; patches apply to the first source, as in EasyBuild."""
        super().extract_step()
        for package in self.source_packages:
            source = self.unpacked(package)
            source['finalpath'] = extract_file(source['path'], os.path.join(self.builddir, package.name))

    def unpacked(self, package):
        """EasyBuild's record of a package's sdist; its patches go to 'finalpath'."""
        return next(source for source in self.src if source['name'] == package.sdist)

    @property
    def built_wheels(self):
        """Directory for wheels of source packages until they are installed."""
        return os.path.join(self.builddir, 'wheels')

# SPDX-License-Identifier: GPL-2.0-only
"""
Images with packages on top of the image of an installed module, the recipe's build dependency.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install.images.base import check_lock, verify_base
from pytorch_install.images.sandbox import FOREIGN, Sandbox, inside
from pytorch_install.images.source import ImageSource
from pytorch_install.sources.recipe_sources import source_with_extension


class PackagesOnTop(ImageSource):
    """The wheels of a lock and packages built from sdists, installed into a copy of the base's image."""

    @property
    def reference(self):
        """The sources and the base."""
        return '%s on %s' % (super().reference, self.spec.base_module)

    def fetch(self):
        """Check the recipe, and compare its lock with the base once EasyBuild has loaded that."""
        spec = self.spec
        lock = source_with_extension(spec.sources, '.txt', spec.easyconfig)
        if not (lock or spec.source_packages):
            raise EasyBuildError("%s names %s as base, but no requirements lock (*.txt) in 'sources'. Add the lock of "
                                 "the packages to install on top", spec.easyconfig, spec.base_module)
        if spec.base and lock:
            check_lock(spec.base, lock.path, spec.python_version)
        return self.expect_image()

    def build(self, image):
        """Unpack the base, install, and pack."""
        spec = self.spec
        verify_base(spec.base)
        sandbox = Sandbox(spec.runtime, spec.builddir, spec.conda_activation)
        check_executable(spec.base, sandbox)
        sandbox.unpack(spec.base.image)
        broken = sandbox.broken_requirements()
        if spec.wheels:
            sandbox.install(spec.wheels.directory, spec.wheels.requirements, '--require-hashes')
        for package, directory in spec.packages:
            self.build_package(sandbox, package, directory)
        broken = sandbox.broken_requirements() - broken
        if broken:
            raise EasyBuildError("The packages of %s do not fit together: %s. Correct the lock", self.reference,
                                 '; '.join(sorted(broken)))
        sandbox.pack(image.file, spec.mksquashfs_args)

    def build_package(self, sandbox, package, directory):
        """Build a package against the base's torch, and install it."""
        wheels = os.path.join(self.spec.builddir, 'wheels')
        mkdir(wheels, parents=True)
        variables = {**FOREIGN, **inside(package.variables_of_build(self.spec.parallel))}
        package.build(directory, sandbox.building_python(), wheels, variables)
        requirements = os.path.join(self.spec.builddir, package.name, 'requirements.txt')
        write_file(requirements, package.requirement + '\n')
        sandbox.install(wheels, requirements, '--ignore-installed')


def check_executable(base, sandbox):
    """Stop unless the recipe's activation finds the Python that the base's recipe found."""
    found = base.executable and sandbox.find_executable(base.image)
    if found != base.executable:
        raise EasyBuildError("The packages would be installed for %s, and the Python of %s is %s. Copy "
                             "'conda_activation' from %s", found, base.module, base.executable,
                             base.record['easyconfig'])

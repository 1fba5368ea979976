# SPDX-License-Identifier: GPL-2.0-only
"""
Images with packages on top of the image of an installed module, the recipe's build dependency.
"""
import os

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import mkdir, write_file

from pytorch_install.images.base import check_lock, verify_base
from pytorch_install.images.kinds import BuiltImage
from pytorch_install.images.sandbox import FOREIGN, Sandbox, inside


class PackagesOnTop(BuiltImage):
    """
    The wheels of a lock and packages built from sdists, installed into a copy of the base's image.

    packages: packages to build, as SourcePackage, each with the directory of its unpacked sdist
    parallel: number of parallel compilers
    """

    packages, parallel = (), None

    @property
    def reference(self):
        """The sources and the base."""
        return '%s on %s' % (super().reference, self.base_module)

    def fetch(self):
        """Check the recipe, and compare its lock with the base once EasyBuild has loaded that."""
        lock = next((source['path'] for source in self.sources if source['name'].endswith('.txt')), None)
        if not (lock or self.recipe['source_packages']):
            raise EasyBuildError("%s names %s as base, but no requirements lock (*.txt) in 'sources'. Add the lock of "
                                 "the packages to install on top", self.recipe.path, self.base_module)
        if self.base and lock:
            check_lock(self.base, lock, self.recipe['python_version'])

    def build(self):
        """Unpack the base, install, and pack."""
        verify_base(self.base)
        sandbox = Sandbox(self.runtime, self.builddir, self.recipe['conda_activation'])
        check_executable(self.base, sandbox)
        sandbox.unpack(self.base.image)
        broken = sandbox.broken_requirements()
        if self.wheels:
            sandbox.install(self.wheels.directory, self.wheels.requirements, '--require-hashes')
        for package, directory in self.packages:
            self.build_package(sandbox, package, directory)
        broken = sandbox.broken_requirements() - broken
        if broken:
            raise EasyBuildError("The packages of %s do not fit together: %s. Correct the lock", self.reference,
                                 '; '.join(sorted(broken)))
        sandbox.pack(self.file, self.recipe['mksquashfs_args'])

    def build_package(self, sandbox, package, directory):
        """Build a package against the base's torch, and install it."""
        wheels = os.path.join(self.builddir, 'wheels')
        mkdir(wheels, parents=True)
        variables = {**FOREIGN, **inside(package.variables_of_build(self.parallel))}
        package.build(directory, sandbox.building_python(), wheels, variables)
        requirements = os.path.join(self.builddir, package.name, 'requirements.txt')
        write_file(requirements, package.requirement + '\n')
        sandbox.install(wheels, requirements, '--ignore-installed')


def check_executable(base, sandbox):
    """Stop unless the recipe's activation finds the Python that the base's recipe found."""
    found = base.executable and sandbox.find_executable(base.image)
    if found != base.executable:
        raise EasyBuildError("The packages would be installed for %s, and the Python of %s is %s. Copy "
                             "'conda_activation' from %s", found, base.module, base.executable,
                             base.record['easyconfig'])

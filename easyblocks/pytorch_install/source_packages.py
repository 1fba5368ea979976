# SPDX-License-Identifier: GPL-2.0-only
"""
Python packages that a recipe builds from sdists, without a network.

They are not EasyBuild's extensions: those are built in the installation directory, after the previous installation is
put aside; these are built before, so that the previous one stays usable during the build, and if it fails.
"""
import os
import re
import string
import sys
import tempfile

from easybuild.easyblocks.generic.containerimage import last_line, run_command, source_names
from easybuild.easyblocks.generic.lockedvenv import FOREIGN, OFFLINE
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import extract_file, mkdir, write_file

from pytorch_install.programs.hold_packages import canonical_name

# File name of an sdist (PEP 625, and the older form with dashes in the name).
SDIST = re.compile(r'(?P<name>.+)-(?P<version>\d[^-]*)\.(tar\.gz|zip)')


class SourcePackage:
    """A package of `source_packages`: its name, its build environment, and its sdist among `sources`."""

    def __init__(self, name, environment, sources):
        self.name = name
        self.variables = environment
        sdists = [sdist for sdist in map(SDIST.fullmatch, sources) if sdist]
        found = [sdist for sdist in sdists if canonical_name(sdist['name']) == canonical_name(name)]
        if len(found) != 1:
            raise EasyBuildError("%s in 'source_packages' needs one sdist in 'sources', such as "
                                 "%s-<version>.tar.gz; found: %s", name, name,
                                 ', '.join(sdist[0] for sdist in found) or 'none')
        self.sdist = found[0][0]
        self.requirement = '%s==%s' % (name, found[0]['version'])

    def environment(self, environ):
        """Environment variables of its build, with $NAME replaced by the host's variables."""
        try:
            return {name: string.Template(value).substitute(environ) for name, value in self.variables.items()}
        except KeyError as missing:
            raise EasyBuildError("$%s is not set, but %s is built with %s. Load the module that sets it, or export it, "
                                 "and run `eb` again", missing.args[0], self.name, self.variables) from missing

    def fetch(self, directory, hashes):
        """Download the sdist with one of some SHA-256 into a directory, with pip and its configuration."""
        print_msg("%s: trying pip's own configuration..." % self.sdist)
        mkdir(directory, parents=True)
        # pip runs the sdist to read its metadata: the hash ensures that it runs only this one
        requirements = os.path.join(tempfile.mkdtemp(), 'requirements.txt')
        write_file(requirements, ' --hash=sha256:'.join([self.requirement, *hashes]) + '\n')
        # with a setuptools of its own (PEP 517): EasyBuild's Python may have none
        command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--use-pep517']
        result = run_command([*command, '--no-binary', self.name, '--dest', directory, '-r', requirements], FOREIGN,
                             fail_on_error=False, hidden=True)
        if result.exit_code:
            raise EasyBuildError("Fetching %s with pip failed: %s. Try again, or put the file into %s",
                                 self.sdist, last_line(result.output), directory)

    def variables_of_build(self, parallel):
        """Environment variables of its build with a number of parallel compilers."""
        return {
            **OFFLINE,
            'PYTHONNOUSERSITE': '1',
            # make, CMake, and torch's own extensions
            'MAKEFLAGS': '-j%d' % parallel,
            'CMAKE_BUILD_PARALLEL_LEVEL': str(parallel),
            'MAX_JOBS': str(parallel),
            **self.environment(os.environ),
        }

    def build(self, directory, python, wheels, variables):
        """Build a wheel of the unpacked and patched sdist; `variables` include those of `variables_of_build`."""
        run_command([*python, '-m', 'pip', '--isolated', 'wheel', '--verbose', '--no-deps', '--no-index',
                     '--no-build-isolation', '--wheel-dir', wheels, directory], variables, work_dir=directory)

    def install(self, python, wheels):
        """Install the wheel into the environment of a Python."""
        run_command([python, '-m', 'pip', '--isolated', 'install', '--quiet', '--no-deps', '--ignore-installed',
                     '--no-index', '--find-links', wheels, self.requirement], OFFLINE)


class SourcePackageSteps:
    """Steps of an easyblock that has the sdists of `source_packages`: a base before EB_PyTorchModule."""

    PARAMETERS = ('source_packages',)

    def __init__(self, *args, **kwargs):
        """Find the sdists."""
        super().__init__(*args, **kwargs)
        sources = source_names(self.cfg)
        self.source_packages = [SourcePackage(name, environment, sources)
                                for name, environment in self.cfg['source_packages']]
        self.built_wheels = os.path.join(self.builddir, 'wheels')

    def fetch_step(self, *args, **kwargs):
        """Fetch missing sdists with pip, unless the recipe has source_urls."""
        directory = os.path.join(source_paths()[0], letter_dir_for(self.name), self.name)
        for package in self.source_packages:
            is_present = self.obtain_file(package.sdist, no_download=True, warning_only=True)
            if not (is_present or self.cfg['source_urls']):
                # a checksum for each source, in EasyBuild's forms
                hashes = re.findall(r'\b[0-9a-f]{64}\b', str(self.cfg['checksums']))
                package.fetch(directory, hashes)
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

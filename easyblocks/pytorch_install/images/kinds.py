# SPDX-License-Identifier: GPL-2.0-only
"""
The kinds of images of PyTorch: those of the generic easyblock with trusted records, locked wheels and a base, squashfs
files of enroot, those that cotainr makes, and those with packages on top of the image of an installed module.

For proxies and logins, configure enroot: its variables and files are not changed here.
"""
import os
import re

from easybuild.easyblocks.generic.containerimage import (
    DOCKER_HUB,
    Definition,
    Image,
    Registry,
    SiteFile,
    checksum_of,
    last_line,
    pinned,
    registry_host,
    run_command,
    runtime_variables,
)
from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.filetools import mkdir, read_file, which, write_file

from pytorch_install.directories import (
    make_directory,
    protect,
    reason_for_distrust,
    require_trust,
    source_directories,
    writable_directory,
)
from pytorch_install.images.base import check_lock, verify_base
from pytorch_install.images.layout import LAYOUT, with_layout
from pytorch_install.images.sandbox import FOREIGN, Sandbox, inside

# The first bytes of a squashfs file: https://docs.kernel.org/filesystems/squashfs.html
MAGIC = b'hsqs'


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
    packages: packages to build, as SourcePackage, each with the directory of its unpacked sdist
    parallel: number of parallel compilers
    """

    INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'source_packages', 'mksquashfs_args')
    wheels = base_module = base = parallel = None
    packages = ()

    @property
    def identity(self):
        """Sources, parameters, layout and base."""
        return '%s layout=%s' % (super().identity, LAYOUT) + (' base=%s' % self.base.checksum if self.base else '')

    def build_package(self, sandbox, package, directory):
        """Build a package against the base's torch, and install it."""
        wheels = os.path.join(self.builddir, 'wheels')
        mkdir(wheels, parents=True)
        # root unpacks an sdist with the owners in it, and in the image it may lack the capability to write there
        run_command(['chown', '-R', str(os.getuid()), directory], hidden=True)
        variables = {**FOREIGN, **inside(package.variables_of_build(self.parallel))}
        package.build(directory, sandbox.building_python(), wheels, variables)
        requirements = os.path.join(self.builddir, package.name, 'requirements.txt')
        write_file(requirements, package.requirement + '\n')
        sandbox.install(wheels, requirements, '--ignore-installed')


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

    def build(self):
        """Build the image, then the packages that it has compilers for, and pack it again."""
        super().build()
        if self.packages:
            sandbox = Sandbox(self.runtime, self.builddir, self.recipe['conda_activation'])
            sandbox.unpack(self.file)
            for package, directory in self.packages:
                self.build_package(sandbox, package, directory)
            os.remove(self.file)
            sandbox.pack(self.file, self.recipe['mksquashfs_args'])


def require_enroot(image):
    """Stop if the host has no enroot."""
    if not which('enroot'):
        raise EasyBuildError("enroot not found on PATH: it imports %s. Run `eb` on a host with enroot", image)


class EnrootImage(RegistryImage):
    """An image that `image` names with its digest, imported by enroot."""

    EXTENSION, KIND = '.sqsh', 'enroot'
    runtime = 'enroot'
    FAILURES = (
        (r'error code: 404|(?i:manifest.unknown)',
         "Image not found in the registry: %(image)s. Look up its digest, and correct the recipe"),
        ('error code: 40[13]',
         "The registry denies this user access to %(image)s. Write a login to enroot's .credentials and run the same "
         "`eb` again"),
    )

    def fetch(self):
        """Check for enroot first."""
        require_enroot(self.reference)
        super().fetch()

    def command(self, part, cache):
        """Let enroot download and convert the image."""
        cache = os.environ.get('ENROOT_CACHE_PATH') or cache
        mkdir(cache, parents=True)
        return (['enroot', 'import', '--output', part, enroot_uri(self.repository, self.digest)],
                {'ENROOT_CACHE_PATH': cache, 'ENROOT_SQUASH_OPTIONS': self.recipe['mksquashfs_args']})

    def check_download(self, path):
        """Stop if the download is not a squashfs file."""
        with open(path, 'rb') as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise EasyBuildError("%s of %s is not a squashfs file. Check `enroot import` by hand", path, self.uri)

    def reason(self, output):
        """Why an attempt failed."""
        lines = [line for line in output.strip().splitlines() if '[ERROR]' in line]
        return re.sub(r'^.*\[ERROR\]\s*', '', lines[-1]) if lines else super().reason(output)


def enroot_uri(repository, digest):
    """
    A reference as enroot takes it.

    enroot 3 rejects '@sha256:...'; 3 and 4 take the digest as a tag. Without a host they ask Docker Hub, whose API is
    not at docker.io (NVIDIA/enroot, src/docker.sh).
    """
    host = registry_host(repository)
    repository = repository[len(host) + 1:] if repository.startswith(host + '/') else repository
    return 'docker://%s%s:%s' % (host + '#' if host != DOCKER_HUB else '', repository, digest)


class Cotainr(BuiltImage):
    """A conda environment file, put on top of `base_image`."""

    base_checksum = ''

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        base = recipe['base_image']
        if not base:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(recipe.path))
        if '://' in base:
            pinned(base, 'base_image')
        else:
            self.wanted = base

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (super().reference, self.recipe['base_image'])

    @property
    def identity(self):
        """Sources, parameters, and a base image that is a file."""
        return ' '.join([super().identity, self.base_checksum])

    def fetch(self):
        """Identify a base image that is a file; cotainr downloads the packages when it builds."""
        self.base_checksum = checksum_of(self.site_file) if self.wanted else ''

    def build(self):
        """Let cotainr build, then pack with the layout of all images that are built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        if not which('singularity'):
            raise EasyBuildError("singularity not found on PATH: cotainr runs it. Create a link of that name to "
                                 "apptainer on PATH")
        base = self.site_file or 'docker://%s@%s' % pinned(self.recipe['base_image'], 'base_image')
        result = run_command(['cotainr', 'build', self.file, '--base-image=' + base,
                              '--conda-env=' + self.source('.yml')['path'], '--accept-licenses'],
                             variables=runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']),
                             work_dir=self.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not build the image: %s. It needs a network; the full output is in "
                                 "EasyBuild's log", last_line(result.output))
        sandbox = Sandbox(self.runtime, self.builddir, self.recipe['conda_activation'])
        sandbox.unpack(self.file)
        os.remove(self.file)
        sandbox.pack(self.file, self.recipe['mksquashfs_args'])


class PackagesOnTop(BuiltImage):
    """The wheels of a lock and packages built from sdists, installed into a copy of the base's image."""

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


def check_executable(base, sandbox):
    """Stop unless the recipe's activation finds the Python that the base's recipe found."""
    found = base.executable and sandbox.find_executable(base.image)
    if found != base.executable:
        raise EasyBuildError("The packages would be installed for %s, and the Python of %s is %s. Copy "
                             "'conda_activation' from %s", found, base.module, base.executable,
                             base.record['easyconfig'])

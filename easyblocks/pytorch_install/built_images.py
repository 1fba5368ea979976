# SPDX-License-Identifier: GPL-2.0-only
"""
Images that are made here: from a definition file, by cotainr, or with packages on top of an installed module's image.

Packages get into an image that is unpacked into a directory, changed by its own pip, and packed again. That needs
neither root nor `fakeroot`, `proot` or subordinate ids, which not every site has. cotainr builds in the same way
(https://github.com/DeiC-HPC/cotainr, cotainr/container.py).
"""
import collections
import hashlib
import os
import shlex

from easybuild.easyblocks.generic.containerimage import (
    Definition,
    Image,
    last_line,
    pinned,
    run_command,
    runtime_variables,
)
from easybuild.easyblocks.generic.lockedvenv import PIN, read_lock
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import compute_checksum, mkdir, read_file, remove_file, which, write_file

from pytorch_install.images import RECORD
from pytorch_install.programs.hold_packages import HOOK, LINE, OF_IMAGE, canonical_name
from pytorch_install.runtime import in_image, read_json

# Code for the image's Python: each Python that sees its torch keeps it when users install packages.
HOOK_CODE = ('import importlib.util as util, os; torch = util.find_spec("torch"); '
             'torch and open(os.path.join(os.path.dirname(os.path.dirname(torch.origin)), %r), "w").write(%r)'
             % (HOOK, LINE % OF_IMAGE))

# Shell code that gives an image what all have that are built here; it also runs in an image without torch.
LAYOUT = (read_file(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'layout.sh'))
          + 'python3 -Ic %s || true\n' % shlex.quote(HOOK_CODE))

# pip without a network and without users' settings; a distribution's Python needs the third to install (PEP 668).
PIP = {'PIP_CONFIG_FILE': os.devnull, 'PIP_NO_INDEX': '1', 'PIP_BREAK_SYSTEM_PACKAGES': '1', 'PIP_USER': '0',
       'PIP_NO_CACHE_DIR': '1'}

# Variables of users with which other files would get into the build.
FOREIGN = runtime_variables(BIND=None, BINDPATH=None, OVERLAY=None, OVERLAYIMAGE=None)

# An installed container module, on whose image another one is built: its name, the path of its image, the content of
# its image.json, and versions that packages on top must not replace, by canonical names.
Base = collections.namedtuple('Base', 'module image record kept')


def inside(variables):
    """Variables of the host with which the runtime sets variables in an image."""
    return {prefix + name: value for name, value in variables.items()
            for prefix in ('APPTAINERENV_', 'SINGULARITYENV_')}


class BuiltImage(Image):
    """
    An image that is made here.

    wheels: locked wheels that it is built with
    base: the installed module whose image is the base, once EasyBuild has loaded it
    packages: packages to build, as SourcePackage, each with the directory of its unpacked sdist
    parallel: number of parallel compilers
    """

    INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'source_packages', 'mksquashfs_args')
    wheels = base = parallel = None
    packages = patches = ()

    @property
    def identity(self):
        """Sources, parameters, layout and base."""
        values = {name: self.recipe[name] for name in self.INGREDIENTS}
        parts = ['%s=%s' % (source['name'], source.get('sha256')) for source in [*self.sources, *self.patches]]
        parts += ['%s=%s' % (name, list(value) if isinstance(value, tuple) else value)
                  for name, value in values.items() if value]
        base = ' base=%s' % self.base.record['sha256'] if self.base else ''
        return '%s layout=%s%s' % (' '.join(parts), hashlib.sha256(LAYOUT.encode()).hexdigest()[:8], base)

    @property
    def directory(self):
        """Where the image is unpacked."""
        return os.path.join(self.builddir, 'image')

    def run(self, words, variables=FOREIGN, **options):
        return run_command(words, variables, work_dir=self.builddir, **options)

    def in_directory(self, *options):
        """Command that runs another one in the unpacked image, with options of the runtime's `exec`."""
        return in_image(self.runtime, self.directory, self.recipe['conda_activation'], '--cleanenv', *options)

    def repack(self, image, wheels=None):
        """Make `file` of an image: with wheels, packages, and the layout of all images that are built here."""
        self.run([self.runtime, 'build', '--sandbox', self.directory, image])
        # the owner may change all of it, as root may
        run_command(['chmod', '-R', 'u+rwX', self.directory], hidden=True)
        broken = self.broken_requirements()
        if wheels:
            self.install_wheels(wheels.directory, wheels.requirements, '--require-hashes')
        for package, sources in self.packages:
            self.build_package(package, sources, os.path.join(self.builddir, 'wheels'))
        broken = self.broken_requirements() - broken
        if broken:
            raise EasyBuildError("The packages of %s do not fit together: %s. Correct the lock", self.reference,
                                 '; '.join(sorted(broken)))
        self.run([*self.in_directory('--no-home', '--writable'), 'sh', '-s'], stdin=LAYOUT, hidden=True)
        remove_file(self.file)
        self.run([self.runtime, 'build', self.file, self.directory],
                 {**FOREIGN, **runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args'])})
        run_command(['rm', '-rf', self.directory], hidden=True)  # several times the image's space

    def install_wheels(self, wheels, requirements, *words):
        """Install packages from a directory of wheels with the image's pip; `words` are options of pip."""
        # /mnt and /media exist in every Linux image, and are empty: a writable image has no other place for binds
        binds = '%s:/mnt,%s:/media' % (wheels, os.path.dirname(requirements))
        result = self.run([*self.in_directory('--no-home', '--writable', '--bind', binds), 'python3', '-s', '-m', 'pip',
                           'install', '--quiet', '--no-deps', '--find-links', '/mnt', *words,
                           '-r', '/media/' + os.path.basename(requirements)],
                          {**FOREIGN, **inside(PIP)}, fail_on_error=False)
        if result.exit_code != 0:
            raise EasyBuildError("The image's pip could not install %s: %s. The full output is in EasyBuild's log",
                                 os.path.basename(requirements), last_line(result.output))

    def build_package(self, package, sources, wheels):
        """Build a package against the image's torch, and install it."""
        mkdir(wheels, parents=True)
        # root unpacks an sdist with the owners in it, and in the image it may lack the capability to write there
        run_command(['chown', '-R', str(os.getuid()), sources], hidden=True)
        # the build directory is its home, and the image is read-only
        package.build(sources, [*self.in_directory('--home', self.builddir), 'python3'], wheels,
                      {**FOREIGN, **inside(package.variables_of_build(self.parallel))})
        requirements = os.path.join(self.builddir, package.name, 'requirements.txt')
        write_file(requirements, package.requirement + '\n')
        self.install_wheels(wheels, requirements, '--ignore-installed')

    def broken_requirements(self):
        """Lines of `pip check`: requirements of packages that are missing, or have another version."""
        result = self.run([*self.in_directory('--no-home'), 'python3', '-s', '-m', 'pip', 'check'],
                          {**FOREIGN, **inside(PIP)}, fail_on_error=False, hidden=True, split_stderr=True)
        return set() if result.exit_code == 0 else set(result.output.splitlines())


class DefinitionFile(BuiltImage, Definition):
    """A definition file; its build arguments are BASE and REQUIREMENTS."""

    def definition(self):
        """Its text, with the layout of all images that are built here; Apptainer joins sections of one name."""
        return '%s\n%%post\n%s' % (super().definition(), LAYOUT)

    def build(self):
        """Build on the base, with the locked wheels as binds; then the packages that the image has compilers for."""
        options, release = [], self.recipe['debian_release']
        if self.base:
            verify_base(self.base)
            options += ['--build-arg', 'BASE=' + self.base.image]
        elif release:
            options += ['--build-arg', 'BASE=' + debian_base(release, self.recipe['debian_packages'], self.builddir)]
        if self.wheels:
            directory, requirements = os.path.split(self.wheels.requirements)
            options += ['--build-arg', 'REQUIREMENTS=' + requirements,
                        '--bind', '%s:/mnt,%s:/media' % (self.wheels.directory, directory)]
        super().build(*options)
        if self.packages:
            self.repack(self.file)


class Cotainr(BuiltImage):
    """A conda environment file, put on top of `base_image`."""

    def __init__(self, recipe, *args):
        super().__init__(recipe, *args)
        if not recipe['base_image']:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(recipe.path))
        if '://' in recipe['base_image']:
            pinned(recipe['base_image'])

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (self.source('.yml')['name'], self.recipe['base_image'])

    def build(self):
        """Let cotainr build, then pack with the layout of all images that are built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        base = next((source['path'] for source in self.sources if source['name'] == self.recipe['base_image']), None)
        base = base or 'docker://%s@%s' % pinned(self.recipe['base_image'])
        result = run_command(['cotainr', 'build', self.file, '--base-image=' + base,
                              '--conda-env=' + self.source('.yml')['path'], '--accept-licenses'],
                             variables=runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']),
                             work_dir=self.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not build the image: %s. It needs a network and `singularity` on PATH; "
                                 "the full output is in EasyBuild's log", last_line(result.output))
        self.repack(self.file)


class PackagesOnTop(BuiltImage):
    """The wheels of a lock and packages built from sdists, installed into a copy of the base's image."""

    @property
    def reference(self):
        """The sources and the base."""
        return '%s on %s' % (super().reference, base_dependency(self.recipe))

    def fetch(self):
        """Check the recipe, and compare its lock with the base once EasyBuild has loaded that."""
        lock = self.source('.txt')
        if not (lock or self.recipe['source_packages']):
            raise EasyBuildError("%s names %s as base, but no requirements lock (*.txt) in 'sources'. Add the lock of "
                                 "the packages to install on top", self.recipe.path, base_dependency(self.recipe))
        if self.base and lock:
            check_lock(self.base, lock['path'])

    def build(self):
        verify_base(self.base)
        self.repack(self.base.image, self.wheels)


def debian_base(release, packages, directory):
    """Install a Debian release with some packages into a directory below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap not found on PATH: it makes the base image. Install that package")
    base, archive = os.path.join(directory, 'base'), os.path.join(directory, 'base.tar')
    arguments = ['--variant=minbase', '--include=' + ','.join(packages), release, archive]
    # this host's own archives of the release, if it has it; not those of other releases or publishers
    result = run_command(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)',
                          'Created-By: Packages'], fail_on_error=False, hidden=True) if which('apt-get') else None
    targets = [line.split() for line in result.output.splitlines()] if result and result.exit_code == 0 else []
    suites = [release, release + '-updates', release + '-security']
    archives = ['deb %s\n' % ' '.join(target) for target in targets
                if len(target) == 3 and target[1] in suites and target[2] == 'main']
    if archives:
        arguments.append(os.path.join(directory, 'sources.list'))
        write_file(arguments[-1], ''.join(archives))
    # for an ordinary user, mmdebstrap runs under subordinate ids, which cannot enter EasyBuild's private TMPDIR
    run_command(['mmdebstrap', *arguments], {'TMPDIR': None}, work_dir=directory)
    mkdir(base)
    # owned by this user, without device files, which an ordinary user cannot make
    run_command(['tar', '--extract', '--no-same-owner', '--exclude', './dev/*', '--file', archive, '--directory', base])
    return base


def base_dependency(easyconfig):
    """Module, as users load it, whose image is the base: the build dependency of the same software; or None."""
    found = [dependency for dependency in easyconfig.dependencies() if dependency['name'] == easyconfig['name']]
    names = ', '.join(dependency['short_mod_name'] for dependency in found)
    if len(found) > 1 or not all(dependency['build_only'] for dependency in found):
        raise EasyBuildError("%s names %s. One PyTorch module can be the base of an image: name it in "
                             "'builddependencies', as it cannot be loaded together with this one",
                             easyconfig.path, names)
    return names or None


def read_base(module, directory, image):
    """The Base that a module's installation in `directory` has recorded; `image` is the path that the module has."""
    path = os.path.join(directory, 'provenance', RECORD)
    record = read_json(path)
    if not (image and 'python_version' in record):
        raise EasyBuildError("%s cannot be the base of an image: it has no image with a record (%s). Name a container "
                             "module of EB_PyTorchContainer", module, path)
    constraints = os.path.join(directory, 'constraints.txt')
    lines = read_file(constraints).splitlines() if os.path.exists(constraints) else []
    pins = [PIN.fullmatch(line.strip()) for line in lines]
    return Base(module, image, record, {canonical_name(pin['name']): pin['version'] for pin in pins if pin})


def verify_base(base):
    """Stop unless the base's image is as it was installed."""
    found, expected = compute_checksum(base.image), base.record['sha256']
    if found != expected:
        raise EasyBuildError("%s, the image of %s, has changed since its installation: it has SHA-256 %s, expected %s. "
                             "Install it again with `eb --rebuild %s`",
                             base.image, base.module, found, expected, base.record['easyconfig'])


def check_lock(base, lock):
    """Stop if a lock would replace packages that the base keeps; pip refuses wheels for another Python."""
    for pin in read_lock(lock):
        kept = base.kept.get(canonical_name(pin['name']), pin['version'])
        if kept != pin['version']:
            raise EasyBuildError("%s: %s==%s conflicts with the base: %s keeps version %s. Remove the line, or lock "
                                 "this version", lock, pin['name'], pin['version'], base.module, kept)

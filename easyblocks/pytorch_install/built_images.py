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
    run_command,
    runtime_variables,
    split_pinned,
)
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.filetools import copy_file, mkdir, read_file, remove_file, which, write_file

from pytorch_install.images import RECORD
from pytorch_install.programs.hold_packages import HOOK, LINE, OF_IMAGE
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
# its image.json, and the path of constraints.txt with versions that packages on top must not replace.
Base = collections.namedtuple('Base', 'module image record constraints')


def inside(variables):
    """Variables of the host with which the runtime sets variables in an image, without those of FOREIGN."""
    of_host = dict(FOREIGN)
    for name, value in variables.items():
        of_host['APPTAINERENV_' + name] = value
        of_host['SINGULARITYENV_' + name] = value
    return of_host


class BuiltImage(Image):
    """
    An image that is made here, with the locked wheels and the source packages of its easyblock.

    base: the installed module whose image is the base, once EasyBuild has loaded it
    """

    INGREDIENTS = ('base_image', 'debian_release', 'debian_packages', 'source_packages', 'mksquashfs_args')
    base = None

    @property
    def identity(self):
        """Sources, parameters, layout and base; as the fetch step has no base yet, an image on top is built anew."""
        parts = []
        for source in [*self.block.records, *self.block.patches]:
            parts.append('%s=%s' % (source['name'], source.get('sha256')))
        for name in self.INGREDIENTS:
            value = self.recipe[name]
            if value:
                parts.append('%s=%s' % (name, value))
        parts.append('layout=' + hashlib.sha256(LAYOUT.encode()).hexdigest()[:8])
        if self.base:
            parts.append('base=' + self.base.record['sha256'])
        return ' '.join(parts)

    @property
    def directory(self):
        """Where the image is unpacked."""
        return os.path.join(self.builddir, 'image')

    def run(self, words, variables=FOREIGN, **options):
        """Run a command in the build directory."""
        return run_command(words, variables, work_dir=self.builddir, **options)

    def run_pip(self, words, *options, **settings):
        """Run a command of the unpacked image's pip, without a network; `options` are those of the runtime's `exec`."""
        command = self.in_directory('--no-home', *options)
        return self.run([*command, 'python3', '-s', '-m', 'pip', *words], inside(PIP), fail_on_error=False, **settings)

    def in_directory(self, *options):
        """Command that runs another one in the unpacked image, with options of the runtime's `exec`."""
        return in_image(self.runtime, self.directory, self.recipe['conda_activation'], '--cleanenv', *options)

    def repack(self, image, wheels=None):
        """Make `file` of an image: with wheels, source packages, and the layout of all images that are built here."""
        self.run([self.runtime, 'build', '--sandbox', self.directory, image])
        # the owner may change all of it, as root may
        run_command(['chmod', '-R', 'u+rwX', self.directory], hidden=True)
        broken_before = self.broken_requirements()
        if wheels:
            self.install_wheels(wheels.directory, wheels.requirements, '--require-hashes', *self.constraints(wheels))
        for package in self.block.source_packages:
            self.build_package(package, self.block.unpacked(package)['finalpath'])
        broken = self.broken_requirements() - broken_before
        if broken:
            raise EasyBuildError("The packages of %s do not fit together: %s. Correct the lock", self.reference,
                                 '; '.join(sorted(broken)))
        self.run([*self.in_directory('--no-home', '--writable'), 'sh', '-s'], stdin=LAYOUT, hidden=True)
        remove_file(self.file)
        packing = runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args'])
        self.run([self.runtime, 'build', self.file, self.directory], {**FOREIGN, **packing})
        run_command(['rm', '-rf', self.directory], hidden=True)  # several times the image's space

    def constraints(self, wheels):
        """Options of pip with which wheels do not replace what the base keeps."""
        if not (self.base and os.path.exists(self.base.constraints)):
            return []
        copy_file(self.base.constraints, os.path.dirname(wheels.requirements))
        return ['--constraint', '/media/' + os.path.basename(self.base.constraints)]

    def install_wheels(self, wheels, requirements, *words):
        """Install packages from a directory of wheels with the image's pip; `words` are options of pip."""
        # /mnt and /media exist in every Linux image, and are empty: a writable image has no other place for binds
        binds = '%s:/mnt,%s:/media' % (wheels, os.path.dirname(requirements))
        name = os.path.basename(requirements)
        result = self.run_pip(['install', '--quiet', '--no-deps', '--find-links', '/mnt', *words,
                               '-r', '/media/' + name], '--writable', '--bind', binds)
        if result.exit_code != 0:
            raise EasyBuildError("The image's pip could not install %s: %s. Correct the lock; the base keeps the "
                                 "versions of its constraints.txt", name, ' '.join(result.output.split())[-500:])

    def build_package(self, package, sources):
        """Build a package against the image's torch, and install it."""
        wheels = os.path.join(self.builddir, 'wheels')
        mkdir(wheels, parents=True)
        # root unpacks an sdist with the owners in it, and in the image it may lack the capability to write there
        run_command(['chown', '-R', str(os.getuid()), sources], hidden=True)
        # the build directory is its home, and the image is read-only
        package.build(sources, [*self.in_directory('--home', self.builddir), 'python3'], wheels,
                      inside(package.variables_of_build(self.recipe.parallel)))
        requirements = os.path.join(self.builddir, package.name, 'requirements.txt')
        write_file(requirements, package.requirement + '\n')
        self.install_wheels(wheels, requirements, '--ignore-installed')

    def broken_requirements(self):
        """Lines of `pip check`: requirements of packages that are missing, or have another version."""
        result = self.run_pip(['check'], hidden=True, split_stderr=True)
        return set() if result.exit_code == 0 else set(result.output.splitlines())


class DefinitionFile(BuiltImage, Definition):
    """A definition file; its build arguments are BASE and REQUIREMENTS."""

    def definition(self):
        """Its text, with the layout of all images that are built here; Apptainer joins sections of one name."""
        return '%s\n%%post\n%s' % (super().definition(), LAYOUT)

    def build(self):
        """Build on the base, with the locked wheels as binds; then the packages that the image has compilers for."""
        base = None
        options = []
        wheels = self.block.wheels
        if self.base:
            base = self.base.image
        elif self.recipe['debian_release']:
            base = debian_base(self.recipe['debian_release'], self.recipe['debian_packages'], self.builddir)
        if base:
            options += ['--build-arg', 'BASE=' + base]
        if wheels:
            directory, requirements = os.path.split(wheels.requirements)
            options += ['--build-arg', 'REQUIREMENTS=' + requirements,
                        '--bind', '%s:/mnt,%s:/media' % (wheels.directory, directory)]
        super().build(*options)
        if self.block.source_packages:
            self.repack(self.file)


class Cotainr(BuiltImage):
    """A conda environment file, put on top of `base_image`."""

    def __init__(self, block):
        """Check the base image."""
        super().__init__(block)
        base = self.recipe['base_image']
        if not base:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(self.recipe.path))
        if '://' in base:
            split_pinned(base)

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (self.source('.yml')['name'], self.recipe['base_image'])

    def build(self):
        """Let cotainr build, then pack with the layout of all images that are built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        name = self.recipe['base_image']
        if '://' in name:
            base = 'docker://%s@%s' % split_pinned(name)
        else:
            base = next(record['path'] for record in self.block.records if record['name'] == name)
        result = run_command(['cotainr', 'build', self.file, '--base-image=' + base,
                              '--conda-env=' + self.source('.yml')['path'], '--accept-licenses'],
                             runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']),
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

    def build(self):
        """Copy the base's image, and install into the copy."""
        self.repack(self.base.image, self.block.wheels)


def debian_base(release, packages, directory):
    """Install a Debian release with some packages into a directory below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap not found on PATH: it makes the base image. Install that package")
    base = os.path.join(directory, 'base')
    archive = os.path.join(directory, 'base.tar')
    arguments = ['--variant=minbase', '--include=' + ','.join(packages), release, archive]
    lines = archives_of_host(release)
    if lines:
        arguments.append(os.path.join(directory, 'sources.list'))
        write_file(arguments[-1], ''.join(lines))
    # for an ordinary user, mmdebstrap runs under subordinate ids, which cannot enter EasyBuild's private TMPDIR
    run_command(['mmdebstrap', *arguments], {'TMPDIR': None}, work_dir=directory)
    mkdir(base)
    # owned by this user, without device files, which an ordinary user cannot make
    run_command(['tar', '--extract', '--no-same-owner', '--exclude', './dev/*', '--file', archive, '--directory', base])
    return base


def archives_of_host(release):
    """Lines of sources.list with this host's own archives of a Debian release, not of other releases or publishers."""
    if not which('apt-get'):
        return []
    result = run_command(['apt-get', 'indextargets', '--format', '$(REPO_URI) $(RELEASE) $(COMPONENT)',
                          'Created-By: Packages'], fail_on_error=False, hidden=True)
    if result.exit_code != 0:
        return []
    suites = (release, release + '-updates', release + '-security')
    lines = []
    for line in result.output.splitlines():
        words = line.split()
        if words[1] in suites and words[2] == 'main':
            lines.append('deb %s\n' % line)
    return lines


def base_dependency(easyconfig):
    """Module, as users load it, whose image is the base: the build dependency of the same software; or None."""
    for dependency in easyconfig.builddependencies():
        if dependency['name'] == easyconfig['name']:
            return dependency['short_mod_name']
    return None


def read_base(module, directory, image):
    """The Base that a module's installation in `directory` has recorded; `image` is the path that the module has."""
    path = os.path.join(directory, 'provenance', RECORD)
    record = read_json(path)
    if not (image and 'python_version' in record):
        raise EasyBuildError("%s cannot be the base of an image: it has no image with a record (%s). Name a container "
                             "module of EB_PyTorchContainer", module, path)
    return Base(module, image, record, os.path.join(directory, 'constraints.txt'))

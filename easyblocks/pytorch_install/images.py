# SPDX-License-Identifier: GPL-2.0-only
"""
The images of PyTorch: those of the generic easyblock with locked wheels and a base, those that cotainr makes, and those
with packages on top of the image of an installed module; and their provenance, as files beside them.
"""
import collections
import datetime
import json
import os

from easybuild.easyblocks.generic.containerimage import (
    ContainerImage,
    Definition,
    Image,
    checksum_of,
    last_line,
    pinned,
    require_image_format,
    run_command,
    runtime_variables,
)
from easybuild.easyblocks.generic.lockedvenv import PIN, read_lock
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option
from easybuild.tools.filetools import mkdir, read_file, remove_file, which, write_file

from pytorch_install.programs.hold_packages import canonical_name
from pytorch_install.runtime import read_json, run_program, write_json
from pytorch_install.sandbox import FOREIGN, LAYOUT, Sandbox, inside, with_layout
from pytorch_install.transaction import keep_file

# The file that identifies an installed image, in the directory `provenance` beside it.
RECORD = 'image.json'

# An installed container module, on whose image another one is built: its name, the path of its image, the content of
# its image.json, and versions that packages on top must not replace, by canonical names.
Base = collections.namedtuple('Base', 'module image record kept')

# What image.json has of the image's Python.
PYTHON = ("import json, platform, sys; "
          "json.dump({'python': sys.executable, 'python_version': platform.python_version()}, sys.stdout)")


class InstalledImage:
    """Steps of an easyblock that installs an image, `image`, as a file: a base before EB_PyTorchModule."""

    image_path = ContainerImage.image_path

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.installation.keeps_replaced = True

    def fetch_image(self):
        """Fetch the image or what it is made of, unless the installed one is the same."""
        image, installed = self.image, self.installation.before(self.image.name)
        if not image.digest:  # a digest in the recipe identifies the image without a download
            image.fetch()
        record = read_json(os.path.join(directory_of(installed), RECORD))
        if (self.cfg['image'] == image.name and not self.cfg['image_checksum']
                and record.get('source') == image.reference and record.get('sha256') != image.checksum):
            raise EasyBuildError("%s has changed since its installation: it has SHA-256 %s; recorded: %s. Restore the "
                                 "earlier image, or accept this one with image_checksum = '%s' in the recipe",
                                 image.file, image.checksum, record.get('sha256'), image.checksum)
        checksum = None if build_option('force') else installed_checksum(image, installed, record)
        image.is_kept = bool(checksum)
        if checksum:
            image.checksum = checksum
        elif image.digest:
            image.fetch()

    def install_runtime(self):
        if self.dry_run:
            self.dry_run_msg("  copied image %s to %s", self.image.reference, self.image_path)
            return
        if self.image.is_kept:
            keep_file(self.installation.before(self.image.name), self.image_path)
        else:
            self.image.install(self.image_path)
        self.complete_runtime()


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
        base = ' base=%s' % self.base.record['sha256'] if self.base else ''
        return '%s layout=%s%s' % (super().identity, LAYOUT, base)

    def sandbox(self):
        return Sandbox(self.runtime, self.builddir, self.recipe['conda_activation'])

    def build_packages(self, sandbox):
        """Build the packages against the torch of an image, and install them."""
        wheels = os.path.join(self.builddir, 'wheels')
        for package, directory in self.packages:
            mkdir(wheels, parents=True)
            # root unpacks an sdist with the owners in it, and in the image it may lack the capability to write there
            run_command(['chown', '-R', str(os.getuid()), directory], hidden=True)
            variables = {**FOREIGN, **inside(package.variables_of_build(self.parallel))}
            # the build directory is its home, and the image is read-only
            package.build(directory, sandbox.python('--home', self.builddir), wheels, variables)
            requirements = os.path.join(self.builddir, package.name, 'requirements.txt')
            write_file(requirements, package.requirement + '\n')
            sandbox.install(wheels, requirements, '--ignore-installed')

    def repack(self):
        """Pack `file` again, with the layout of all images that are built here, and with the packages."""
        sandbox = self.sandbox()
        sandbox.unpack(self.file)
        self.build_packages(sandbox)
        remove_file(self.file)
        sandbox.pack(self.file, self.recipe['mksquashfs_args'])


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
        """Build the image, then the packages that it has compilers for."""
        super().build()
        if self.packages:
            self.repack()


class Cotainr(BuiltImage):
    """A conda environment file, put on top of `base_image`."""

    def __init__(self, recipe, *args):
        super().__init__(recipe, *args)
        if not recipe['base_image']:
            raise EasyBuildError("%s has a conda environment file in 'sources', which needs 'base_image'. Set it",
                                 os.path.basename(recipe.path))
        if '://' in recipe['base_image']:
            pinned(recipe['base_image'], 'base_image')

    @property
    def reference(self):
        """The environment file and the base image."""
        return '%s on %s' % (self.source('.yml')['name'], self.recipe['base_image'])

    def build(self):
        """Let cotainr build, then pack with the layout of all images that are built here."""
        if not which('cotainr'):
            raise EasyBuildError("cotainr not found on PATH: it builds the image. Load its module or install it")
        if not which('singularity'):
            raise EasyBuildError("singularity not found on PATH: cotainr runs it. Create a link of that name to "
                                 "apptainer on PATH")
        base = next((source['path'] for source in self.sources if source['name'] == self.recipe['base_image']), None)
        base = base or 'docker://%s@%s' % pinned(self.recipe['base_image'], 'base_image')
        result = run_command(['cotainr', 'build', self.file, '--base-image=' + base,
                              '--conda-env=' + self.source('.yml')['path'], '--accept-licenses'],
                             variables=runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']),
                             work_dir=self.builddir, fail_on_error=False, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("cotainr could not build the image: %s. It needs a network; the full output is in "
                                 "EasyBuild's log", last_line(result.output))
        self.repack()


class PackagesOnTop(BuiltImage):
    """The wheels of a lock and packages built from sdists, installed into a copy of the base's image."""

    @property
    def reference(self):
        """The sources and the base."""
        return '%s on %s' % (super().reference, self.base_module)

    def fetch(self):
        """Check the recipe, and compare its lock with the base once EasyBuild has loaded that."""
        lock = self.source('.txt')
        if not (lock or self.recipe['source_packages']):
            raise EasyBuildError("%s names %s as base, but no requirements lock (*.txt) in 'sources'. Add the lock of "
                                 "the packages to install on top", self.recipe.path, self.base_module)
        if self.base and lock:
            check_lock(self.base, lock['path'], self.recipe['python_version'])

    def build(self):
        """Unpack the base, install, and pack."""
        verify_base(self.base)
        sandbox = self.sandbox()
        found, expected = sandbox.find_executable(self.base.image), self.base.record['python']
        if found != expected:
            raise EasyBuildError("The packages would be installed for %s, and the Python of %s is %s. Copy "
                                 "'conda_activation' from %s", found, self.base_module, expected,
                                 self.base.record['easyconfig'])
        sandbox.unpack(self.base.image)
        broken = sandbox.broken_requirements()
        if self.wheels:
            sandbox.install(self.wheels.directory, self.wheels.requirements, '--require-hashes')
        self.build_packages(sandbox)
        broken = sandbox.broken_requirements() - broken
        if broken:
            raise EasyBuildError("The packages of %s do not fit together: %s. Correct the lock", self.reference,
                                 '; '.join(sorted(broken)))
        sandbox.pack(self.file, self.recipe['mksquashfs_args'])


def base_dependency(easyconfig, software):
    """Module, as users load it, whose image is the base: the build dependency of the same software; or None."""
    found = [dependency for dependency in easyconfig.dependencies() if dependency['name'] == software]
    names = ', '.join(dependency['short_mod_name'] for dependency in found)
    if len(found) > 1:
        raise EasyBuildError("%s names %s, but only one module can be the base of an image", easyconfig.path, names)
    if found and not found[0]['build_only']:
        raise EasyBuildError("%s names %s in 'dependencies', but two PyTorch modules cannot be loaded together. To "
                             "build on its image, name it in 'builddependencies'", easyconfig.path, names)
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
    """Stop unless the base's image is as it was installed, and for this host's machine."""
    found, expected = checksum_of(base.image), base.record['sha256']
    if found != expected:
        raise EasyBuildError("%s, the image of %s, has changed since its installation: it has SHA-256 %s, expected %s. "
                             "Install it again with `eb --rebuild %s`",
                             base.image, base.module, found, expected, base.record['easyconfig'])
    require_image_format(base.image)


def check_lock(base, lock, python_version):
    """Stop if the packages of a lock do not fit the base; their wheels are for `python_version` (<major>.<minor>)."""
    python = base.record['python_version']
    if python.split('.')[:2] != python_version.split('.'):
        raise EasyBuildError("%s has Python %s, and the lock is for Python %s. Lock the requirements for the base's "
                             "Python, and set 'python_version'", base.module, python, python_version)
    for pin in read_lock(lock):
        kept = base.kept.get(canonical_name(pin.name), pin.version)
        if kept != pin.version:
            raise EasyBuildError("%s: line %d: %s conflicts with the base: %s keeps %s==%s. Remove the line, or lock "
                                 "this version", lock, pin.line, pin, base.module, pin.name, kept)


def directory_of(path):
    """Directory with the provenance of an installed image."""
    return os.path.join(os.path.dirname(path), 'provenance')


def installed_checksum(image, path, record):
    """SHA-256 of an installed image, which need not exist, if it is the recipe's, and undamaged; else None."""
    checksum = record.get('sha256')
    if not os.path.isfile(path) or not checksum or record.get('identity') != image.identity:
        return None
    if checksum_of(path) != checksum:
        print_warning("%s is damaged: its SHA-256 has changed since its installation. Installing it again", path)
        return None
    print_msg("image %s: the installed one is the same, it is kept" % image.reference)
    return checksum


def write_provenance(image, path, python, version):
    """
    Write image.json, packages.json (what `pip inspect` prints) and libraries.json.

    :param python: command of the image's Python, without this user's environment
    :param version: arguments with which the runtime prints its version
    """
    record = {
        'image': os.path.basename(path),
        'source': image.reference,
        'digest': image.digest,
        'identity': image.identity,
        'sha256': image.checksum or checksum_of(path),
        'size': os.path.getsize(path),
        'installed': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
        'runtime': run_command([image.runtime, *version], hidden=True).output.strip(),
        'easyconfig': os.path.basename(image.recipe.path),
        **json.loads(run_command([*python, '-I', '-c', PYTHON], split_stderr=True, hidden=True).output),
    }
    base = getattr(image, 'base', None)
    if base:
        record['sources'] = {source['name']: source['sha256'] for source in image.sources}
        record['base'] = {'module': base.module, **base.record}
    libraries = json.loads(run_program(python, 'list_libraries.py', split_stderr=True, hidden=True).output)
    for name, content in [(RECORD, record), ('packages.json', python_packages(python)), ('libraries.json', libraries)]:
        write_json(os.path.join(directory_of(path), name), content)


def python_packages(python):
    """What an image's `pip inspect` prints; empty, with a warning, without a pip that has it (22.2)."""
    result = run_command([*python, '-I', '-m', 'pip', '--isolated', 'inspect'], fail_on_error=False, hidden=True,
                         split_stderr=True)
    if result.exit_code == 0:
        return json.loads(result.output)
    print_warning("no list of packages: pip failed in the image: %s", last_line(result.stderr))
    return {}

# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for installing software as a container image (SIF) with a module around it.

The image is a source that ends in .sif, is built from a definition file (.def) among the sources, comes from a registry
by its digest (`image = 'docker://...@sha256:...'`), or is a file that the site provides (`image = 'name.sif'`).
"""
import contextlib
import fcntl
import glob
import json
import os
import platform
import re
import socket
import struct
import time

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import (
    CHECKSUM_TYPE_SHA256,
    adjust_permissions,
    compute_checksum,
    copy_file,
    mkdir,
    read_file,
    remove,
    remove_dir,
    remove_file,
    which,
    write_file,
)
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version
from easybuild.tools.run import run_shell_cmd

RUNTIMES = ('singularity', 'apptainer')
DOCKER = 'docker://'
DOCKER_HUB = 'docker.io'
# docker://<repository>[:<tag>]@sha256:<digest>; a colon before a slash starts a port, not a tag
PINNED = re.compile(DOCKER + r'(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)(:[\w.-]+)?'
                    r'@(?P<digest>sha256:[0-9a-f]{64})')
# `uname -m` by the codes in SIF headers: https://github.com/apptainer/sif, pkg/sif/arch.go
MACHINES = {b'02': 'x86_64', b'04': 'aarch64', b'06': 'ppc64le'}
ATTEMPTS = 3
# Seconds before the second attempt; the third waits twice as long.
PAUSE = 2
# A command in bin/ that runs the command of this name in the image.
WRAPPER = """#!/bin/bash
exec %(runtime)s exec "${0%%/*}/../%(image)s" "${0##*/}" "$@"
"""


def text(pattern='.+'):
    """A test for printable texts that match a pattern."""
    return lambda value: isinstance(value, str) and value.isprintable() and bool(re.fullmatch(pattern, value))


def texts(pattern='.+'):
    """A test for lists of such texts."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(text(pattern), value))


def or_none(test):
    """A test that None passes too."""
    return lambda value: value is None or test(value)


def is_sources(value):
    """Whether a value is a list of file names, or of EasyBuild's dictionaries with one."""
    return isinstance(value, (list, tuple)) and texts()([
        entry.get('filename') if isinstance(entry, dict) else entry for entry in value])


# For each parameter a test of its values, and what the message expects.
EXPECTED = {
    'binds': (texts(r'/[^,:"\\]*(:/[^,:"\\]*(:[^,:"\\]+)?)?'),
              "a list of absolute paths, or path:target:options, without commas, '\"' and '\\', such as "
              "['/scratch', '/opt/x:/x:ro']"),
    'central_images': (texts('/.*'), "a list of absolute paths, such as ['/appl/images']"),
    'commands': (texts(r'[\w+][\w.+-]*'), "a list of names of commands, such as ['python']"),
    'debian_packages': (texts(r'[a-z0-9][a-z0-9.+-]+'), "a list of names of Debian packages"),
    'debian_release': (or_none(text('[a-z]+')), "the name of a Debian release, such as 'bookworm', or None"),
    'gpu': (lambda value: value is None or value in ('cuda', 'rocm', 'xpu'), "'cuda', 'rocm', 'xpu' or None"),
    'image': (text(r'\S+'), "a text with the name of an image"),
    'image_checksum': (or_none(text('[0-9a-f]{64}')), "a SHA-256 (64 hexadecimal digits), or None"),
    'mksquashfs_args': (text(r'[^"\'\\]*'), "a text with options of mksquashfs, without quotation marks and '\\'"),
    'sources': (is_sources, "a list of file names, or of dictionaries with a 'filename', such as ['tool.def']"),
}


def check_parameters(recipe, expected):
    """Stop if a parameter has a wrong type, or a value that is not allowed by a table like EXPECTED."""
    for name, (test, words) in expected.items():
        if name in recipe:
            if name == 'image' and not recipe.is_mandatory_param(name):
                test, words = or_none(test), words + ", or None"
            if not test(recipe[name]):
                raise EasyBuildError("%s: %s = %r is wrong: expected %s. Correct the recipe",
                                     os.path.basename(recipe.path), name, recipe[name], words)


class ContainerImage(EasyBlock):
    """Support for installing software as a container image with a module around it."""

    SOURCES_OF_IMAGES = "'image', or a .sif or .def file in 'sources'"
    # Parameters that can name a file which the site provides, and those of its checksum.
    SITE_FILES = {'image': 'image_checksum'}

    @staticmethod
    def extra_options(extra_vars=None):
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({
            'image': [None, "Image that is not a source: docker:// with digest, or a .sif file in central_images",
                      CUSTOM],
            'image_checksum': [None, "SHA-256 of that .sif file", CUSTOM],
            'central_images': [[], "Directories of the site with images, by their file names", CUSTOM],
            'binds': [[], "Paths of the host to bind", CUSTOM],
            'commands': [[], "Commands of the image that bin/ offers on the host", CUSTOM],
            'debian_release': [None, "Debian release for the definition file's base image", CUSTOM],
            'debian_packages': [[], "Debian packages in that base image", CUSTOM],
            'gpu': [None, "GPU kind that the image is for: 'cuda', 'rocm', 'xpu' or None", CUSTOM],
            # every start decompresses what it reads: gzip, the default, is a third smaller and the slowest to read;
            # the table of fragments (small files packed together) displaces directories from the kernel's cache
            'mksquashfs_args': ['-comp lz4 -no-fragments', "Packing of an image built here", CUSTOM],
        })
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe, and find the image that it names."""
        check_parameters(ec, EXPECTED)
        super().__init__(ec, *args, **kwargs)
        kind = next(iter(self.named_kinds().values()), Image)
        self.image = kind(self.cfg, '%s-%s.sif' % (self.name, det_full_ec_version(self.cfg)), self.records,
                          self.builddir)

    def fetch_step(self, skip_checksums=False):
        """Check the recipe first; find the site's files as sources."""
        self.require_image()
        names = [record['name'] for record in self.records]
        for name, checksum in self.site_files().items():
            if names.count(name) > 1:  # among the sources too, with a checksum
                continue
            path = self.obtain_file(name, no_download=True, warning_only=True)
            if not path:
                raise EasyBuildError("Image not found: %s in central_images (%s) or on EasyBuild's source path (%s). "
                                     "Put a copy there, or correct the recipe", name,
                                     ', '.join(self.cfg['central_images']), ', '.join(source_paths()))
            if not skip_checksums:  # --inject-checksums would write it as that of the recipe's first source
                self.src.append({'name': name, 'path': path, 'cmd': None, 'checksum': checksum,
                                 'finalpath': self.builddir})
        super().fetch_step(skip_checksums=skip_checksums)

    def require_image(self):
        """Stop unless the recipe names one image."""
        kinds = self.named_kinds()
        if len(kinds) != 1:
            raise EasyBuildError("%s must name one image source, %s; found: %s", self.cfg.path,
                                 self.SOURCES_OF_IMAGES, ', '.join(kinds) or 'none')

    def site_files(self):
        """Checksums of the files that the site provides, by their names; None where the recipe has none."""
        return {self.cfg[name]: checksum and self.cfg[checksum] for name, checksum in self.SITE_FILES.items()
                if '://' not in (self.cfg[name] or '://')}

    @property
    def records(self):
        """EasyBuild's records of the sources and of the site's files; before the fetch step, their names."""
        return self.src or [{'name': entry['filename'] if isinstance(entry, dict) else entry}
                            for entry in [*self.cfg['sources'], *self.site_files()]]

    def kinds(self):
        """Kinds of images by the extension of their source, or what `image` names."""
        return {'.sif': SifSource, '.def': Definition, 'registry': Registry}

    def named_kinds(self):
        """Kinds of the images that the recipe names, by what names them."""
        kinds, image = self.kinds(), self.cfg['image'] or ''
        found = {extension: kind for extension, kind in kinds.items()
                 if extension[0] == '.' and any(source['name'].endswith(extension) for source in self.records)}
        if image.startswith(DOCKER):
            found[image] = kinds['registry']
        elif image and not re.fullmatch(r'[^/]+\.sif', image):
            raise EasyBuildError("image = '%s' is neither a reference that begins with docker:// nor a file name that "
                                 "ends in .sif. Download other images as such a file. The directory of a file belongs "
                                 "in 'central_images'", image)
        return found

    @property
    def image_path(self):
        return os.path.join(self.installdir, self.image.name)

    def obtain_file(self, filename, **kwargs):
        """Search images in the site's directories first, without copying them to the source path."""
        for directory in self.cfg['central_images'] if filename.endswith('.sif') else []:
            if os.path.isfile(os.path.join(directory, filename)):
                return os.path.join(directory, filename)
        return super().obtain_file(filename, **kwargs)

    def checksum_step(self):
        """Verify the sources, then fetch the image: all later steps work offline."""
        super().checksum_step()
        self.image.sources, self.image.patches = self.records, self.patches
        if not self.dry_run:
            self.fetch_image()

    def fetch_image(self):
        """Download and verify the image."""
        self.image.fetch()

    def extract_step(self):
        """Leave the sources where they are."""
        for source in self.src:
            source['finalpath'] = self.builddir

    def configure_step(self):
        """Check for a container runtime before the long steps."""
        self.image.require_runtime()

    def build_step(self):
        """Build the image, unless it is a file already."""
        self.image.build()

    def install_step(self):
        """Install the image, and its commands in bin/."""
        if self.dry_run:
            self.dry_run_msg("  copied image %s to %s", self.image.reference, self.image_path)
            return
        self.image.install(self.image_path)
        for name in self.cfg['commands']:
            path = os.path.join(self.installdir, 'bin', name)
            write_file(path, WRAPPER % {'runtime': self.image.runtime, 'image': self.image.name})
            adjust_permissions(path, 0o755, relative=False)

    def make_module_extra(self, *args, **kwargs):
        """Add the image, and what it sees of the host."""
        return super().make_module_extra(*args, **kwargs) + self.image_statements()

    def image_statements(self):
        txt, image = '', {'value': self.image.name, 'pushenv': True}
        for variable in ('SIF', 'SIF' + re.sub(r'\W', '_', self.name.upper())):
            txt += self.module_generator.set_environment(variable, image, relpath=True)
        txt += self.module_generator.set_environment('CONTAINERROOT', {'value': '', 'pushenv': True}, relpath=True)
        flag = {'cuda': 'NV', 'rocm': 'ROCM'}.get(self.cfg['gpu'])
        for runtime in ('SINGULARITY', 'APPTAINER'):
            txt += self.module_generator.append_paths(runtime + '_BINDPATH', self.cfg['binds'], allow_abs=True,
                                                      delim=',')
            if flag:
                txt += self.module_generator.set_environment('%s_%s' % (runtime, flag), {'value': '1', 'pushenv': True})
        return txt

    def sanity_check_step(self, custom_paths=None, custom_commands=None, **kwargs):
        """Start the image, and look for its commands."""
        paths = {'files': [self.image.name] + ['bin/' + name for name in self.cfg['commands']], 'dirs': []}
        commands = ['%s exec "$SIF" sh -c "command -v %s"' % (self.image.runtime, name)
                    for name in self.cfg['commands'] or ['sh']]
        super().sanity_check_step(custom_paths=custom_paths or paths, custom_commands=custom_commands or commands,
                                  **kwargs)


def find_runtime():
    """Command of the container runtime on this host; None if it has none."""
    return next((runtime for runtime in RUNTIMES if which(runtime)), None)


def runtime_variables(**settings):
    """Settings of the container runtime as environment variables, with both prefixes; it ignores unknown ones."""
    return {'%s_%s' % (runtime, name): value for name, value in settings.items()
            for runtime in ('APPTAINER', 'SINGULARITY')}


def run_command(words, variables=None, **options):
    """Run a command, a list of words, with EasyBuild's run_shell_cmd; None unsets a variable. Return its result."""
    environ = {**os.environ, **(variables or {})}
    # without use_bash=False, EasyBuild 5.4 runs bash with the words of a list as arguments
    return run_shell_cmd(list(words), env={name: value for name, value in environ.items() if value is not None},
                         use_bash=False, **options)


def last_line(output):
    """The last line of a command's output, which has the error."""
    return (output.strip().splitlines() or ['no output'])[-1]


def checksum_of(path):
    """SHA-256 of a file, in hexadecimal."""
    return compute_checksum(path, CHECKSUM_TYPE_SHA256)


def require_image_format(path, name=None):
    """
    Stop if a file is not a SIF image, is shorter than its header specifies, or is for another machine.

    The header: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go, type header. The container runtime takes an
    image for any machine, and cannot start it.

    :param name: the image in messages, by default its path
    """
    with open(path, 'rb') as file:
        header = file.read(128)
    if header[32:41] != b'SIF_MAGIC' or len(header) < 128:
        raise EasyBuildError("%s is not an image in SIF format. Download it again", path)
    found, here = MACHINES.get(header[45:47]), platform.machine()
    if found not in (None, here):
        raise EasyBuildError("%s is an image for %s, and this host is %s. Get the image for %s, or install it on "
                             "another host", name or path, found, here, here)
    expected, size = sum(struct.unpack('<qq', header[112:128])), os.path.getsize(path)
    if size < expected:
        raise EasyBuildError("%s is truncated: %d of %d bytes. Download it again", path, size, expected)


def debian_base(release, packages, directory):
    """Install a Debian release with some packages into a directory below `directory`; return its path."""
    if not which('mmdebstrap'):
        raise EasyBuildError("mmdebstrap not found on PATH: it makes the base image. Install that package")
    base, archive = os.path.join(directory, 'base'), os.path.join(directory, 'base.tar')
    arguments = ['--variant=minbase', '--include=' + ','.join(packages), release, archive]
    # this host's own archives of the release, if it runs that release
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


def one_source(sources, extension, easyconfig):
    """The one source (EasyBuild's record) with this file name extension; None without one."""
    found = [source for source in sources if source['name'].endswith(extension)]
    if len(found) > 1:
        raise EasyBuildError("%s has %d sources that end in %s, at most one is expected: %s",
                             os.path.basename(easyconfig), len(found), extension,
                             ', '.join(source.get('path') or source['name'] for source in found))
    return found[0] if found else None


class Image:
    """
    An image, from what the recipe names to the installed file: each step adds what it learns.

    name: file name of the installed image
    file: path of the finished image, which gets installed
    checksum: SHA-256 of the file, None while it is unknown
    digest: digest of the registry's manifest ('sha256:<hex>'), which identifies the image before it is fetched; or None
    is_kept: whether the installed image is the same
    """

    INGREDIENTS = ('debian_release', 'debian_packages', 'mksquashfs_args')
    digest = checksum = None
    is_kept = False
    patches = ()

    def __init__(self, recipe, name, sources, builddir):
        self.recipe, self.name, self.sources, self.builddir = recipe, name, sources, builddir
        self.file = os.path.join(builddir, name)

    @property
    def runtime(self):
        """Command that builds, downloads and starts the image; a build dependency may bring it."""
        return find_runtime()

    def require_runtime(self):
        if not self.runtime:
            raise EasyBuildError("%s not found on PATH. Install Apptainer or load its module", ' and '.join(RUNTIMES))

    @property
    def reference(self):
        """The image's source, as the recipe names it."""
        return ', '.join(source['name'] for source in self.sources)

    @property
    def identity(self):
        """Text that determines the content."""
        values = {name: self.recipe[name] for name in self.INGREDIENTS}
        return ' '.join(['%s=%s' % (source['name'], source.get(CHECKSUM_TYPE_SHA256))
                         for source in [*self.sources, *self.patches]] +
                        ['%s=%s' % (name, list(value) if isinstance(value, tuple) else value)
                         for name, value in values.items() if value])

    def source(self, extension):
        return one_source(self.sources, extension, self.recipe.path)

    def fetch(self):
        """Download and verify; all later steps work offline."""

    def build(self):
        """Make `file`, if the image is made here."""

    def install(self, path):
        """Copy the image to a path, and verify the copy."""
        copy_file(self.file, path)
        found = checksum_of(path)
        if self.checksum not in (None, found):
            raise EasyBuildError("%s has SHA-256 %s, expected %s. Run the same `eb` again", path, found, self.checksum)
        self.checksum = found


class SifSource(Image):
    """An image that is an EasyBuild source, or that the site provides; it keeps its name."""

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        self.name = os.path.basename(self.source('.sif')['name'])

    @property
    def identity(self):
        """The file's content, wherever it is."""
        return 'sha256:%s' % self.source('.sif').get(CHECKSUM_TYPE_SHA256)

    def fetch(self):
        """Check the file's structure; EasyBuild has compared its checksum."""
        self.file, found = self.source('.sif')['path'], self.source('.sif').get(CHECKSUM_TYPE_SHA256)
        # the copy is compared with the recipe's checksum: the file may change after it was verified
        self.checksum = not build_option('ignore_checksums') and self.recipe['image_checksum'] or found
        require_image_format(self.file)

    def build(self):
        """Start it, if the recipe has no checksum: then only the runtime detects damage."""
        if self.source('.sif').get('checksum') and not build_option('ignore_checksums'):
            return
        result = run_command([self.runtime, 'exec', self.file, 'true'], fail_on_error=False, hidden=True)
        if result.exit_code != 0:
            raise EasyBuildError("%s does not start: %s. Download it again", self.file, last_line(result.output))


class Definition(Image):
    """An image that the runtime builds from a definition file; the build argument BASE is a Debian base."""

    def definition(self):
        return read_file(self.source('.def')['path'])

    def arguments(self):
        """Options of the runtime's `build`."""
        if not self.recipe['debian_release']:
            return []
        return ['--build-arg', 'BASE=' + debian_base(self.recipe['debian_release'], self.recipe['debian_packages'],
                                                     self.builddir)]

    def build(self):
        """Build with subordinate ids; %files names files relative to the build directory."""
        definition = os.path.join(self.builddir, self.source('.def')['name'])
        write_file(definition, self.definition())
        run_command([self.runtime, 'build', '--fakeroot', *self.arguments(), self.file, definition],
                    variables=runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']), work_dir=self.builddir)


def pinned(reference, parameter):
    """Repository and digest of a reference; EasyBuildError with advice if it has no digest."""
    found = PINNED.fullmatch(reference)
    if found:
        return found.group('repository', 'digest')
    if not reference.startswith(DOCKER):
        raise EasyBuildError("%s = '%s' does not begin with %s. Correct the recipe", parameter, reference, DOCKER)
    raise EasyBuildError("%s = '%s' is not pinned to one image by its digest: append '@sha256:<digest>', where "
                         "<digest> is the output of `skopeo inspect --raw %s | sha256sum`",
                         parameter, reference, reference.partition('@')[0])


def registry_host(repository):
    """Host of a registry. As in docker, a first part without dot and port is not a host (pytorch/pytorch)."""
    first, slash, _ = repository.partition('/')
    return first if slash and (re.search('[.:]', first) or first == 'localhost') else DOCKER_HUB


class Registry(Image):
    """
    An image that `image` names as docker:// with its digest; downloads stay on EasyBuild's source path.

    For proxies, logins and certificates, configure the runtime: its variables and files are not changed here.
    """

    EXTENSION, KIND = '.sif', 'docker'
    # Reasons for which another attempt would fail too, with the message.
    FAILURES = (
        ('(?i)manifest.unknown|name.unknown|404 not found',
         "Image not found in the registry: %(image)s. Look up its digest, and correct the recipe"),
        ('no child with platform|no image found in (manifest list|image index)',
         "%(image)s has no image for %(machine)s, the machine of this host. Choose another image, or install it on "
         "another host"),
        ('(?i)unauthorized|authentication required|403 forbidden|(?-i:DENIED)|resource is denied',
         "The registry denies this user access to %(image)s. Log in with `%(runtime)s registry login --username <user> "
         "docker://%(host)s` and run the same `eb` again"),
        ('^(?!.*failed to get)',
         "%(image)s was downloaded, but %(runtime)s cannot convert it: %(reason)s. Solve this, and run the same `eb` "
         "again; it keeps the download"),
    )

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        self.repository, self.digest = pinned(recipe['image'], 'image')
        self.uri = '%s%s@%s' % (DOCKER, self.repository, self.digest)
        # the digest of an index is that of the images for several machines, whose hosts may share a source path
        machine = '' if platform.machine() == 'x86_64' else '.' + platform.machine()
        self.file_name = self.digest.replace(':', '-') + machine + self.EXTENSION
        self.directories = [os.path.join(path, letter_dir_for(recipe['name']), recipe['name'], 'images')
                            for path in source_paths()]

    reference = property(lambda self: self.recipe['image'])
    identity = property(lambda self: ' '.join([self.KIND, self.digest, self.recipe['mksquashfs_args']]))

    def fetch(self):
        """Download, unless an earlier download is complete and unchanged."""
        self.require_runtime()
        # before making a directory: a user without write permission can use it
        if not any(map(self.find, self.directories)):
            directory = next(filter(is_writable, self.directories), self.directories[0])
            mkdir(directory, parents=True)
            with locked(os.path.join(directory, '.lock')) as is_alone:
                # another process may have completed its download while this one waited
                if not self.find(directory):
                    self.download(directory, is_alone)

    def find(self, directory):
        """Whether a directory has a download that is complete, packed with these options, and undamaged."""
        path = os.path.join(directory, self.file_name)
        try:
            with open(path + '.json') as file:
                note = json.load(file)
            if note['identity'] != self.identity:
                return False
            is_undamaged = note['sha256'] == checksum_of(path)
        except (OSError, ValueError, KeyError, TypeError, EasyBuildError):
            return False
        if is_undamaged:
            print_msg("image %s: found at %s" % (self.reference, path))
            self.file, self.checksum = path, note['sha256']
        else:
            print_warning("%s is damaged: its SHA-256 has changed since the download. Downloading again", path)
        return is_undamaged

    def download(self, directory, is_alone=True):
        """Download to a directory; the note is written first, so that the image appears when it is complete."""
        path = os.path.join(directory, self.file_name)
        # of this process: the runtime of an `eb` that was killed may still write to its own
        mine = '%s.%s.uid-%d.' % (path, socket.gethostname(), os.getuid())
        part = '%s%d.part' % (mine, os.getpid())
        for stale in glob.glob(glob.escape(mine) + '*.part*'):
            if not os.path.exists('/proc/' + stale[len(mine):].split('.')[0]):
                remove(stale)
        # after a failure, it has complete layers for the next attempt; per user, because the runtime makes it private
        cache = '%s.%d.cache' % (path if is_alone else part, os.getuid())
        is_kept = is_alone
        try:
            self.pull(part, cache)
            self.check_download(part)
            is_kept = False
            if not is_alone and self.find(directory):  # without locks, another process may have been faster
                return
            self.checksum = checksum_of(part)
            note = {'reference': self.reference, 'identity': self.identity, 'sha256': self.checksum}
            write_file(path + '.json', json.dumps(note, indent=2) + '\n')
            os.replace(part, path)
            self.file = path
        finally:
            remove_file(part)
            if not is_kept:
                with contextlib.suppress(EasyBuildError, OSError):
                    remove_dir(cache)

    def check_download(self, path):
        """Stop if a download is not complete, or for another machine: with its digest, the runtime takes any."""
        require_image_format(path, self.reference)

    def command(self, part, cache):
        """The command that downloads and converts the image, and its variables."""
        settings = {'MKSQUASHFS_ARGS': self.recipe['mksquashfs_args']}
        if not (os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR')):
            settings['CACHEDIR'] = cache
            mkdir(cache)
        return [self.runtime, 'build', '--force', part, self.uri], runtime_variables(**settings)

    def pull(self, part, cache):
        command, variables = self.command(part, cache)
        for attempt in range(1, ATTEMPTS + 1):
            remove_file(part)
            print_msg("image %s: fetching, attempt %d of %d..." % (self.reference, attempt, ATTEMPTS))
            result = run_command(command, variables, fail_on_error=False, hidden=True, stream_output=True)
            if result.exit_code == 0:
                return
            reason = self.reason(result.output)
            for pattern, message in self.FAILURES:
                if re.search(pattern, reason):
                    raise EasyBuildError(message % {
                        'image': self.reference, 'machine': platform.machine(), 'runtime': self.runtime,
                        'host': registry_host(self.repository), 'reason': reason})
            if attempt < ATTEMPTS:
                print_msg("image %s: %s" % (self.reference, reason))
                time.sleep(attempt * PAUSE)
        raise EasyBuildError("Fetching %s failed %d times: %s. Run the same `eb` again; it keeps the layers that "
                             "are complete", self.reference, ATTEMPTS, reason)

    def reason(self, output):
        lines = output.strip().splitlines() or ['no output']
        return re.sub(r'^FATAL:\s*', '', next((line for line in reversed(lines) if 'FATAL' in line), lines[-1]))


def is_writable(directory):
    """Whether this user can write to a directory, or can create it."""
    while not os.path.exists(directory):
        directory = os.path.dirname(directory)
    return os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK)


@contextlib.contextmanager
def locked(path):
    """Lock a directory for one download at a time; the value is whether its file system has locks."""
    # another user's file can be locked for reading
    foreign = os.path.exists(path) and not os.access(path, os.W_OK)
    with open(path, 'r' if foreign else 'a') as lock:
        has_locks = True
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print_msg("another EasyBuild is downloading images to %s, waiting..." % os.path.dirname(path))
                fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            has_locks = False
        yield has_locks

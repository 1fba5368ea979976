# SPDX-License-Identifier: GPL-2.0-only
"""
EasyBuild support for installing software as a container image (SIF) with a module around it.

The image is a source that ends in .sif, is built from a definition file (.def) among the sources, comes from a registry
by its digest (`image = 'docker://...@sha256:...'`), or is a file that the site provides (`image = 'name.sif'`).
"""
import json
import os
import platform
import re
import shutil
import struct
import time

from easybuild.framework.easyblock import EasyBlock
from easybuild.framework.easyconfig import CUSTOM
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.config import source_paths
from easybuild.tools.filetools import (
    adjust_permissions,
    compute_checksum,
    copy_file,
    mkdir,
    read_file,
    remove_file,
    which,
    write_file,
)
from easybuild.tools.module_naming_scheme.utilities import det_full_ec_version
from easybuild.tools.run import run_shell_cmd

RUNTIMES = ('singularity', 'apptainer')
DOCKER = 'docker://'
# docker://<repository>[:<tag>]@sha256:<digest>; a colon before a slash starts a port, not a tag
PINNED = re.compile(DOCKER + r'([\w./:-]+?)(?::[\w.-]+)?@(sha256:[0-9a-f]{64})')
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


def is_sources(value):
    """Whether a value is a list of file names, or of EasyBuild's dictionaries with one."""
    return isinstance(value, (list, tuple)) and texts()([
        entry.get('filename') if isinstance(entry, dict) else entry for entry in value])


# For each parameter its default, which is always allowed, a test of other values, and its help.
PARAMETERS = {
    'image': [None, text(r'docker://\S+|[^/\s]+\.sif'), "an image that is not a source: docker:// with its digest, or "
              "the name of a .sif file in central_images or on the source path"],
    'image_checksum': [None, text('[0-9a-f]{64}'), "the SHA-256 of that .sif file (64 hexadecimal digits)"],
    'central_images': [[], texts('/.*'), "a list of directories of the site with images, such as ['/appl/images']"],
    'binds': [[], texts(r'/[^,:"\\]*(:/[^,:"\\]*(:[^,:"\\]+)?)?'), "a list of absolute paths of the host to bind, or "
              "path:target:options, without commas, '\"' and '\\', such as ['/scratch', '/opt/x:/x:ro']"],
    'commands': [[], texts(r'[\w+][\w.+-]*'), "a list of commands of the image that bin/ offers on the host"],
    'gpu': [None, text('cuda|rocm|xpu'), "the kind of GPU that the image is for: 'cuda', 'rocm' or 'xpu'"],
    # every start decompresses what it reads: gzip, the default, is a third smaller and the slowest to read;
    # the table of fragments (small files packed together) displaces directories from the kernel's cache
    'mksquashfs_args': ['-comp lz4 -no-fragments', text(r'[^"\'\\]*'), "a text with options of mksquashfs for an image "
                        "that is built here, without quotation marks and '\\'"],
}
EXPECTED = {**PARAMETERS, 'sources': [is_sources, "a list of file names, or of dictionaries with a 'filename', such as "
                                                  "['tool.def']"]}


def check_parameters(recipe, expected):
    """Stop if a parameter's value is neither its default nor allowed by a table like EXPECTED."""
    for name, (*_, test, words) in expected.items():
        value, default = recipe.get(name), recipe.extra_options.get(name, [()])[0]
        is_default = (value, type(value)) == (default, type(default)) and not recipe.is_mandatory_param(name)
        if name in recipe and not (is_default or test(value)):
            raise EasyBuildError("%s: %s = %r is wrong: expected %s. Correct the recipe",
                                 os.path.basename(recipe.path), name, value, words)


class ContainerImage(EasyBlock):
    """Support for installing software as a container image with a module around it."""

    SOURCES_OF_IMAGES = "'image', or a .sif or .def file in 'sources'"
    # Parameters that can name a file which the site provides, and those of its checksum.
    SITE_FILES = {'image': 'image_checksum'}

    @staticmethod
    def extra_options(extra_vars=None):
        extra_vars = EasyBlock.extra_options(extra_vars)
        extra_vars.update({name: [default, words, CUSTOM] for name, (default, _, words) in PARAMETERS.items()})
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe, and find the image that it names."""
        check_parameters(ec, EXPECTED)
        super().__init__(ec, *args, **kwargs)
        kind = next(iter(self.named_kinds().values()), Image)
        self.image = kind(self.cfg, '%s-%s.sif' % (self.name, det_full_ec_version(self.cfg)), self.records,
                          self.builddir)

    def kinds(self):
        """Kinds of images by the extension of their source, or by how `image` begins."""
        return {'.sif': SifSource, '.def': Definition, DOCKER: Registry}

    def named_kinds(self):
        """Kinds of the images that the recipe names, by what names them."""
        names = [record['name'] for record in self.records] + [self.cfg['image'] or '']
        marks = [re.search(r'^docker://|\.\w+$|$', name)[0] for name in names]
        return {mark: kind for mark, kind in self.kinds().items() if mark in marks}

    def require_image(self):
        """Stop unless the recipe names one image."""
        kinds = self.named_kinds()
        if len(kinds) != 1:
            raise EasyBuildError("%s must name one image source, %s; found: %s", self.cfg.path,
                                 self.SOURCES_OF_IMAGES, ', '.join(kinds) or 'none')

    def site_files(self):
        """Checksums of the files that the site provides, by their names; None where the recipe has none."""
        return {self.cfg[name]: checksum and self.cfg[checksum] for name, checksum in self.SITE_FILES.items()
                if '://' not in (self.cfg[name] or '://') and self.cfg[name] not in self.source_names}

    @property
    def source_names(self):
        return [entry['filename'] if isinstance(entry, dict) else entry for entry in self.cfg['sources']]

    @property
    def records(self):
        """EasyBuild's records of the sources and of the site's files; before the fetch step, their names."""
        return self.src or [{'name': name} for name in [*self.source_names, *self.site_files()]]

    @property
    def image_path(self):
        return os.path.join(self.installdir, self.image.name)

    def fetch_step(self, skip_checksums=False):
        """Check the recipe first; find the site's files as sources."""
        self.require_image()
        if not skip_checksums:  # --inject-checksums would write theirs as those of the recipe's first sources
            self.src.extend({'name': name, 'path': self.obtain_file(name, no_download=True), 'cmd': None,
                             'checksum': checksum, 'finalpath': self.builddir}
                            for name, checksum in self.site_files().items())
        super().fetch_step(skip_checksums=skip_checksums)

    def obtain_file(self, filename, **kwargs):
        """Search images in the site's directories first, without copying them to the source path."""
        paths = [os.path.join(directory, filename) for directory in self.cfg['central_images']
                 if filename.endswith('.sif')]
        return next(filter(os.path.isfile, paths), None) or super().obtain_file(filename, **kwargs)

    def checksum_step(self):
        """Verify the sources, then fetch the image: all later steps work offline."""
        super().checksum_step()
        self.image.sources = self.records
        if not self.dry_run:
            self.fetch_image()

    def fetch_image(self):
        """Download and verify the image."""
        self.image.fetch()

    def extract_step(self):
        """Leave the sources where they are."""

    def configure_step(self):
        """Check for a container runtime before the long steps."""
        self.image.require_runtime()

    def build_step(self):
        """Build the image, unless it is a file already."""
        self.image.build()

    def install_step(self):
        """Install the image, and its commands in bin/."""
        if self.dry_run:
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
        directory, image = {'value': '', 'pushenv': True}, {'value': self.image.name, 'pushenv': True}
        variables = {'SIF': image, 'SIF' + re.sub(r'\W', '_', self.name.upper()): image, 'CONTAINERROOT': directory}
        generator = self.module_generator
        txt = ''.join(generator.set_environment(name, value, relpath=True) for name, value in variables.items())
        flag = {'cuda': 'NV', 'rocm': 'ROCM'}.get(self.cfg['gpu'])
        for runtime in map(str.upper, RUNTIMES):
            txt += generator.append_paths(runtime + '_BINDPATH', self.cfg['binds'], allow_abs=True, delim=',')
            if flag:
                txt += generator.set_environment('%s_%s' % (runtime, flag), {'value': '1', 'pushenv': True})
        return txt

    def sanity_check_step(self, **kwargs):
        """Start the image, and look for its commands."""
        paths = {'files': [self.image.name] + ['bin/' + name for name in self.cfg['commands']], 'dirs': []}
        commands = ['%s exec "$SIF" sh -c "command -v %s"' % (self.image.runtime, name)
                    for name in self.cfg['commands'] or ['sh']]
        super().sanity_check_step(**{'custom_paths': paths, 'custom_commands': commands, **kwargs})


def find_runtime():
    """Command of the container runtime on this host; None if it has none."""
    return next((runtime for runtime in RUNTIMES if which(runtime)), None)


def runtime_variables(**settings):
    """Settings of the container runtime as environment variables, with both prefixes; it ignores unknown ones."""
    return {'%s_%s' % (runtime.upper(), name): value for name, value in settings.items() for runtime in RUNTIMES}


def run_command(words, variables=None, **options):
    """Run a command, a list of words, with EasyBuild's run_shell_cmd; None unsets a variable. Return its result."""
    environ = {**os.environ, **(variables or {})}
    # without use_bash=False, EasyBuild 5.4 runs bash with the words of a list as arguments
    return run_shell_cmd(list(words), env={name: value for name, value in environ.items() if value is not None},
                         use_bash=False, **options)


def last_line(output):
    """The last line of a command's output, which has the error."""
    return (output.strip().splitlines() or ['no output'])[-1]


def require_image_format(path):
    """
    Stop if a file is not a complete SIF image, or is for another machine: the container runtime takes any.

    The header: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go, type header.
    """
    with open(path, 'rb') as file:
        header = file.read(128)
    is_whole = len(header) == 128 and os.path.getsize(path) >= sum(struct.unpack('<qq', header[112:]))
    if header[32:41] != b'SIF_MAGIC' or not is_whole:
        raise EasyBuildError("%s is not a complete image in SIF format. Download it again", path)
    found, here = MACHINES.get(header[45:47]), platform.machine()
    if found not in (None, here):
        raise EasyBuildError("%s is an image for %s, and this host is %s. Choose another image", path, found, here)


def one_source(sources, extension, easyconfig):
    """The one source (EasyBuild's record) with this file name extension; None without one."""
    found = [source for source in sources if source['name'].endswith(extension)]
    if len(found) > 1:
        raise EasyBuildError("%s has %d sources that end in %s, at most one is expected: %s", easyconfig, len(found),
                             extension, ', '.join(source['name'] for source in found))
    return found[0] if found else None


def pinned(reference):
    """Repository and digest of a reference; EasyBuildError with advice if it has no digest."""
    found = PINNED.fullmatch(reference)
    if not found:
        raise EasyBuildError("%s is not pinned to one image: expected docker://<repository>@sha256:<digest>, where "
                             "<digest> is the output of `skopeo inspect --raw %s | sha256sum`",
                             reference, reference.partition('@')[0])
    return found.groups()


class Image:
    """
    An image, from what the recipe names to the installed file: each step adds what it learns.

    sources: EasyBuild's records of the recipe's sources and of the site's files
    name: file name of the installed image
    file: path of the finished image, which gets installed
    checksum: SHA-256 of the file, None while it is unknown
    digest: digest of the registry's manifest ('sha256:<hex>'), which identifies the image before it is fetched; or None
    """

    digest = checksum = None
    # Command that builds, downloads and starts the image; a build dependency may bring it.
    runtime = property(lambda _: find_runtime())
    # The image's source, as the recipe names it, and a text that determines the content.
    reference = property(lambda self: ', '.join(source['name'] for source in self.sources))
    identity = property(lambda self: 'sha256:%s' % self.checksum)

    def __init__(self, recipe, name, sources, builddir):
        self.recipe, self.name, self.sources, self.builddir = recipe, name, sources, builddir
        self.file = os.path.join(builddir, name)

    def require_runtime(self):
        if not self.runtime:
            raise EasyBuildError("%s not found on PATH. Install Apptainer or load its module", ' and '.join(RUNTIMES))

    def source(self, extension):
        return one_source(self.sources, extension, self.recipe.path)

    def fetch(self):
        """Download and verify; all later steps work offline."""

    def build(self):
        """Make `file`, if the image is made here."""

    def install(self, path):
        """Copy the image to a path, and verify the copy."""
        copy_file(self.file, path)
        found = compute_checksum(path)
        if self.checksum not in (None, found):
            raise EasyBuildError("%s has SHA-256 %s, expected %s. Run the same `eb` again", path, found, self.checksum)
        self.checksum = found


class SifSource(Image):
    """An image that is an EasyBuild source, or that the site provides; it keeps its name."""

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        self.name = os.path.basename(self.source('.sif')['name'])

    def fetch(self):
        """Check the file's structure; EasyBuild has compared its checksum."""
        self.file, self.checksum = self.source('.sif')['path'], self.source('.sif').get('sha256')
        require_image_format(self.file)


class Definition(Image):
    """An image that the runtime builds from a definition file."""

    def definition(self):
        return read_file(self.source('.def')['path'])

    def build(self, *options):
        """Build with subordinate ids; %files names files relative to the build directory."""
        definition = os.path.join(self.builddir, self.source('.def')['name'])
        write_file(definition, self.definition())
        run_command([self.runtime, 'build', '--fakeroot', *options, self.file, definition],
                    runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args']), work_dir=self.builddir)


class Registry(Image):
    """
    An image that `image` names as docker:// with its digest; downloads stay on EasyBuild's source path.

    For proxies, logins and certificates, configure the runtime: its variables and files are not changed here.
    """

    EXTENSION, KIND = '.sif', 'docker'

    reference = property(lambda self: self.recipe['image'])
    identity = property(lambda self: ' '.join([self.KIND, self.digest, self.recipe['mksquashfs_args']]))

    def __init__(self, recipe, name, sources, builddir):
        super().__init__(recipe, name, sources, builddir)
        self.repository, self.digest = pinned(recipe['image'])
        # the digest of an index is that of the images for several machines, whose hosts may share a source path
        machine = '' if platform.machine() == 'x86_64' else '.' + platform.machine()
        self.downloads = [os.path.join(path, letter_dir_for(recipe['name']), recipe['name'], 'images',
                                       self.digest.replace(':', '-') + machine + self.EXTENSION)
                          for path in source_paths()]

    def fetch(self):
        """Download, unless an earlier download is complete and unchanged."""
        self.file = next(filter(self.find, self.downloads), None)
        if self.file:
            print_msg("image %s: found at %s" % (self.reference, self.file))
        else:
            self.require_runtime()
            self.download(self.downloads[0])

    def find(self, path):
        """Whether a file is a download that is complete, packed with these options, and undamaged."""
        try:
            with open(path + '.json') as file:
                note = json.load(file)
            self.checksum = compute_checksum(path)
            return (note['identity'], note['sha256']) == (self.identity, self.checksum)
        except (OSError, ValueError, KeyError, TypeError, EasyBuildError):
            return False

    def download(self, path):
        """Download to a path; the note is written first, so that the image appears when it is complete."""
        # complete layers stay for the next attempt, also of the next `eb`; per user, as the runtime makes it private
        cache = '%s.%d.cache' % (path, os.getuid())
        part = os.path.join(cache, '%d.part' % os.getpid())
        try:
            self.pull(part, cache)
            if self.EXTENSION == '.sif':  # with its digest, the runtime takes an image for any machine
                require_image_format(part)
            self.file, checksum = path, compute_checksum(part)
            if not self.find(path):  # another `eb` may have finished meanwhile, and installs its file: no two are equal
                self.checksum = checksum
                note = {'reference': self.reference, 'identity': self.identity, 'sha256': checksum}
                write_file(part + '.json', json.dumps(note, indent=2) + '\n')
                os.replace(part + '.json', path + '.json')  # the file of another user can be replaced, not written
                os.replace(part, path)
        finally:
            remove_file(part)
        shutil.rmtree(cache, ignore_errors=True)

    def pull(self, part, cache):
        for attempt in range(ATTEMPTS):
            time.sleep(attempt * PAUSE)
            mkdir(cache, parents=True)
            remove_file(part)
            print_msg("image %s: fetching, attempt %d of %d..." % (self.reference, attempt + 1, ATTEMPTS))
            result = run_command(*self.command(part, cache), fail_on_error=False, hidden=True, stream_output=True)
            # another `eb` of this user that has finished the same download removes the cache
            if result.exit_code == 0 and os.path.exists(part):
                return
            reason = last_line(result.output)
            if re.search('no child with platform|no image found in', reason):
                raise EasyBuildError("%s has no image for %s, the machine of this host: %s. Choose another image",
                                     self.reference, platform.machine(), reason)
        raise EasyBuildError("Fetching %s failed %d times: %s. Check the digest, the network and your login, and run "
                             "the same `eb` again; it keeps the layers that are complete",
                             self.reference, ATTEMPTS, reason)

    def command(self, part, cache):
        """The command that downloads and converts the image, and its variables."""
        cache = os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR') or cache
        return ([self.runtime, 'build', part, '%s%s@%s' % (DOCKER, self.repository, self.digest)],
                runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args'], CACHEDIR=cache))

# Copyright 2026 the authors of pytorch-easybuild
# SPDX-License-Identifier: BSD-3-Clause
"""
EasyBuild support for installing software as a container image (SIF) with a module around it.

The image is a source that ends in .sif, is built from a definition file (.def) among the sources, comes from a registry
by its digest (`image = 'docker://...@sha256:...'`), or is a file that the site provides (`image = 'name.sif'`).
"""
import collections
import contextlib
import json
import os
import platform
import re
import struct

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
    move_file,
    read_file,
    remove_dir,
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
# End of the runtime's variable that makes GPUs visible in the image.
GPU_FLAGS = {'cuda': '_NV', 'rocm': '_ROCM'}
# A command in bin/ that runs the command of this name in the image.
WRAPPER = """#!/bin/bash
exec %(runtime)s exec "${0%%/*}/../%(image)s" "${0##*/}" "$@"
"""

# An easyconfig parameter: its default, which is always allowed, a test of other values, and its help.
Parameter = collections.namedtuple('Parameter', 'default is_allowed words')


def matches(pattern='.+'):
    """A test whether a value is a printable text that matches a pattern."""
    return lambda value: isinstance(value, str) and value.isprintable() and bool(re.fullmatch(pattern, value))


def each_matches(pattern='.+'):
    """A test whether a value is a list of printable texts that match a pattern."""
    return lambda value: isinstance(value, (list, tuple)) and all(map(matches(pattern), value))


PARAMETERS = {
    'image': Parameter(None, matches(r'docker://\S+|[^/\s]+\.sif'), "an image that is not a source: docker:// with its "
                       "digest, or the name of a .sif file on the source path"),
    'image_checksum': Parameter(None, matches('[0-9a-f]{64}'), "the SHA-256 of that .sif file (64 hexadecimal digits)"),
    'binds': Parameter([], each_matches(r'/[^,:"\\]*(:/[^,:"\\]*(:[^,:"\\]+)?)?'), "a list of absolute paths of the "
                       "host to bind, or path:target:options, without commas, '\"' and '\\', such as ['/scratch', "
                       "'/opt/x:/x:ro']"),
    'commands': Parameter([], each_matches(r'[\w+][\w.+-]*'), "a list of names of commands in the image, without "
                          "directories, that bin/ offers on the host"),
    'gpu': Parameter(None, matches('cuda|rocm|xpu'), "the kind of GPU that the image is for: 'cuda', 'rocm' or 'xpu'"),
    # every start decompresses what it reads: gzip, the default, is a third smaller and the slowest to read;
    # the table of fragments (small files packed together) displaces directories from the kernel's cache
    'mksquashfs_args': Parameter('-comp lz4 -no-fragments', matches(r'[^"\'\\]*'), "a text with options of mksquashfs "
                                 "for an image that is built here, without quotation marks and '\\'"),
}


def check_parameters(recipe, parameters):
    """Stop if the value of a parameter is neither its default nor allowed by a table like PARAMETERS."""
    for name, parameter in parameters.items():
        value = recipe.get(name, parameter.default)
        is_default = repr(value) == repr(parameter.default)  # 0 equals False
        if is_default and not recipe.is_mandatory_param(name):
            continue
        if not parameter.is_allowed(value):
            raise EasyBuildError("%s: %s = %r is wrong: expected %s. Correct the recipe",
                                 os.path.basename(recipe.path), name, value, parameter.words)


def source_names(recipe):
    """File names of a recipe's sources, each of which is a file name or one of EasyBuild's dictionaries."""
    return [source['filename'] if isinstance(source, dict) else source for source in recipe['sources']]


class ContainerImage(EasyBlock):
    """Support for installing software as a container image with a module around it."""

    SOURCES_OF_IMAGES = "'image', or a .sif or .def file in 'sources'"

    @staticmethod
    def extra_options(extra_vars=None):
        """Easyconfig parameters of this easyblock."""
        extra_vars = EasyBlock.extra_options(extra_vars)
        for name, parameter in PARAMETERS.items():
            extra_vars[name] = [parameter.default, parameter.words, CUSTOM]
        return extra_vars

    def __init__(self, ec, *args, **kwargs):
        """Check the recipe, and find the kind of image that it names."""
        check_parameters(ec, PARAMETERS)
        super().__init__(ec, *args, **kwargs)
        kind = next(iter(self.named_kinds().values()), Image)
        self.image = kind(self)
        self.log.info("Kind of image: %s", kind.__name__)

    def kinds(self):
        """Kinds of images by the extension of their source, or by how `image` begins."""
        return {'.sif': SifSource, '.def': Definition, DOCKER: Registry}

    def named_kinds(self):
        """Kinds of the images that the recipe names, by what names them."""
        marks = {os.path.splitext(record['name'])[1] for record in self.records}
        if DOCKER in str(self.cfg['image']):
            marks.add(DOCKER)
        return {mark: kind for mark, kind in self.kinds().items() if mark in marks}

    def require_image(self):
        """Stop unless the recipe names one image."""
        kinds = self.named_kinds()
        if len(kinds) != 1:
            raise EasyBuildError("%s must name one image source, %s; found: %s", self.cfg.path,
                                 self.SOURCES_OF_IMAGES, ', '.join(kinds) or 'none')

    def site_files(self):
        """Checksums of the files that the site provides, by their names; None where the recipe has none."""
        name = self.cfg['image'] or DOCKER
        if DOCKER in name or name in source_names(self.cfg):
            return {}
        return {name: self.cfg['image_checksum']}

    @property
    def records(self):
        """EasyBuild's records of the sources and of the site's files; before the fetch step, their names."""
        return self.src or [{'name': name} for name in [*source_names(self.cfg), *self.site_files()]]

    @property
    def image_path(self):
        """Path of the installed image."""
        return os.path.join(self.installdir, self.image.name)

    def fetch_step(self, skip_checksums=False):
        """Check the recipe, find the site's files as sources, then download the image."""
        self.require_image()
        if not skip_checksums:  # --inject-checksums would write theirs as those of the recipe's first sources
            for name, checksum in self.site_files().items():
                path = self.obtain_file(name, no_download=True)
                self.src.append({'name': name, 'path': path, 'cmd': None, 'checksum': checksum,
                                 'finalpath': self.builddir})
        super().fetch_step(skip_checksums=skip_checksums)
        if not (skip_checksums or self.dry_run):
            self.fetch_image()

    def fetch_image(self):
        """Download and verify the image: all later steps work offline."""
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
        """Statements of the module that set the image's variables, its binds, and the runtime's flag for GPUs."""
        generator = self.module_generator
        paths = {'SIF': self.image.name, 'SIF' + re.sub(r'\W', '_', self.name.upper()): self.image.name}
        txt = generator.set_environment('CONTAINERROOT', pushed(''), relpath=True)
        for variable, path in paths.items():
            txt += generator.set_environment(variable, pushed(path), relpath=True)
        for runtime in map(str.upper, RUNTIMES):
            txt += generator.append_paths(runtime + '_BINDPATH', self.cfg['binds'], allow_abs=True, delim=',')
            if self.cfg['gpu'] in GPU_FLAGS:
                txt += generator.set_environment(runtime + GPU_FLAGS[self.cfg['gpu']], pushed('1'))
        return txt

    def sanity_check_step(self, **kwargs):
        """Start the image, and look for its commands."""
        paths = {'files': [self.image.name], 'dirs': []}
        commands = ['%s exec "$SIF" sh -c "command -v %s"' % (self.image.runtime, name)
                    for name in self.cfg['commands'] or ['sh']]
        super().sanity_check_step(**{'custom_paths': paths, 'custom_commands': commands, **kwargs})


def pushed(value):
    """What EasyBuild's module generators take for a variable whose earlier value is restored when unloading."""
    return {'value': value, 'pushenv': True}


def find_runtime():
    """Command of the container runtime on this host; None if it has none."""
    return next((runtime for runtime in RUNTIMES if which(runtime)), None)


def runtime_variables(**settings):
    """Settings of the container runtime as environment variables, with both prefixes; it ignores unknown ones."""
    variables = {}
    for runtime in RUNTIMES:
        for name, value in settings.items():
            variables['%s_%s' % (runtime.upper(), name)] = value
    return variables


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
    Stop if a file is not a complete SIF image: the container runtime takes a part of one.

    The header: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go, type header.
    """
    with open(path, 'rb') as file:
        header = file.read(128)
    is_whole = len(header) == 128 and os.path.getsize(path) >= sum(struct.unpack('<qq', header[112:]))
    if header[32:41] != b'SIF_MAGIC' or not is_whole:
        raise EasyBuildError("%s is not a complete image in SIF format. Download it again", path)


def one_source(records, extension, easyconfig):
    """The one source (EasyBuild's record) with this file name extension; None without one."""
    found = [record for record in records if record['name'].endswith(extension)]
    if len(found) > 1:
        raise EasyBuildError("%s has several sources that end in %s: at most one is expected", easyconfig, extension)
    return next(iter(found), None)


def split_pinned(reference):
    """Repository and digest of a reference; EasyBuildError with advice if it has no digest."""
    found = PINNED.fullmatch(reference)
    if not found:
        raise EasyBuildError("%s is not pinned to one image: expected docker://<repository>@sha256:<digest>, where "
                             "<digest> is the output of `skopeo inspect --raw %s | sha256sum`",
                             reference, reference)
    return found.groups()


class Image:
    """
    An image, from what the recipe names to the installed file: each step adds what it learns.

    block: the easyblock that installs it
    name: file name of the installed image
    file: path of the finished image, which gets installed
    checksum: SHA-256 of the file, None while it is unknown
    digest: digest of the registry's manifest ('sha256:<hex>'), which identifies the image before it is fetched; or None
    """

    EXTENSION = '.sif'
    digest = None
    checksum = None

    def __init__(self, block):
        """Take over the easyblock's recipe and build directory."""
        self.block = block
        self.recipe = block.cfg
        self.builddir = block.builddir
        self.name = '%s-%s%s' % (block.name, det_full_ec_version(block.cfg), self.EXTENSION)
        self.file = os.path.join(self.builddir, self.name)

    @property
    def runtime(self):
        """Command that builds, downloads and starts the image; a build dependency may bring it."""
        return find_runtime()

    @property
    def reference(self):
        """The image's source, as the recipe names it."""
        return ', '.join(record['name'] for record in self.block.records)

    @property
    def identity(self):
        """A text that determines the image's content."""
        return 'sha256:%s' % self.checksum

    def require_runtime(self):
        """Stop without a container runtime."""
        if not self.runtime:
            raise EasyBuildError("%s not found on PATH. Install Apptainer or load its module", ' and '.join(RUNTIMES))

    def source(self, extension):
        """The record of the source with this extension; None without one."""
        return one_source(self.block.records, extension, self.recipe.path)

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
        self.block.log.info("Installed %s with SHA-256 %s from %s", path, found, self.file)


class SifSource(Image):
    """An image that is an EasyBuild source, or that the site provides; it keeps its name."""

    def __init__(self, block):
        """Take over the name of the source."""
        super().__init__(block)
        self.name = os.path.basename(self.source('.sif')['name'])

    def fetch(self):
        """Check the file's structure; EasyBuild compares its checksum."""
        record = self.source('.sif')
        self.file = record['path']
        self.checksum = record.get('sha256')
        require_image_format(self.file)


class Definition(Image):
    """An image that the runtime builds from a definition file."""

    def definition(self):
        """Text of the definition file."""
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

    KIND = 'docker'

    def __init__(self, block):
        """Read the reference, and choose the name of the download."""
        super().__init__(block)
        self.repository, self.digest = split_pinned(self.recipe['image'])
        # the digest of an index is that of the images for several machines, whose hosts may share a source path
        machine = '' if platform.machine() == 'x86_64' else '.' + platform.machine()
        self.download_name = 'images/%s%s%s' % (self.digest.replace(':', '-'), machine, self.EXTENSION)

    @property
    def reference(self):
        """The recipe's reference, with its tag."""
        return self.recipe['image']

    @property
    def identity(self):
        """The digest, and how the image is packed."""
        return ' '.join([self.KIND, self.digest, self.recipe['mksquashfs_args']])

    def fetch(self):
        """Download, unless an earlier download is complete and unchanged."""
        path = self.block.obtain_file(self.download_name, no_download=True, warning_only=True)
        if path and self.is_complete(path):
            self.file = path
        else:
            self.require_runtime()
            name = self.block.name
            self.download(os.path.join(source_paths()[0], letter_dir_for(name), name, self.download_name))

    def is_complete(self, path):
        """Whether a file is a download that is complete, packed with these options, and undamaged."""
        if not os.path.isfile(path + '.json'):
            return False
        self.checksum = compute_checksum(path)
        note = read_file(path + '.json')
        is_complete = json.dumps(self.identity) in note and self.checksum in note
        self.block.log.info("%s has SHA-256 %s; as recorded: %s", path, self.checksum, is_complete)
        return is_complete

    def download(self, path):
        """Download to a path; the note is written first, so that the image appears when it is complete."""
        # complete layers stay for the next attempt, also of the next `eb`; per user, as the runtime makes it private
        cache = '%s.%d.cache' % (path, os.getuid())
        part = os.path.join(cache, '%d.part' % os.getpid())
        try:
            self.pull(part, cache)
            self.checksum = compute_checksum(part)
            note = {'reference': self.reference, 'identity': self.identity, 'sha256': self.checksum}
            write_file(part + '.json', json.dumps(note, indent=2) + '\n')
            move_file(part + '.json', path + '.json')  # the file of another user can be replaced, not written
            move_file(part, path)
            self.file = path
        finally:
            remove_file(part)
        with contextlib.suppress(EasyBuildError):  # another `eb` of this user downloads the same image
            remove_dir(cache)

    def pull(self, part, cache):
        """Let the runtime download and convert the image."""
        mkdir(cache, parents=True)
        print_msg("image %s: fetching..." % self.reference)
        result = run_command(*self.command(part, cache), fail_on_error=False, hidden=True, stream_output=True)
        if result.exit_code != 0:
            raise EasyBuildError("Fetching %s failed: %s. Check the digest, the network and your login, and run the "
                                 "same `eb` again; it keeps the layers that are complete", self.reference,
                                 last_line(result.output))

    def command(self, part, cache):
        """The command that downloads and converts the image, and its variables."""
        cache = os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR') or cache
        words = [self.runtime, 'build', part, '%s%s@%s' % (DOCKER, self.repository, self.digest)]
        return words, runtime_variables(MKSQUASHFS_ARGS=self.recipe['mksquashfs_args'], CACHEDIR=cache)

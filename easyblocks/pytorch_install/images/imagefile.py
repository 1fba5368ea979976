##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
What all sources of images have in common, and files that hold one; called by sources.py, registry.py and cotainr.py.
"""
import hashlib
import json
import os
import shlex
import shutil
import struct

from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option
from easybuild.tools.filetools import remove_file

from pytorch_install.sources.directories import source_directories, writable_directory

CHUNK = 16 * 1024 * 1024

# Parameters that decide, besides the sources, what is in an image that is built here.
INGREDIENTS = ['base_image', 'debian_release', 'debian_packages', 'mksquashfs_args']


class ImageSource:
    """
    One kind of place that an image comes from; `block` is the easyblock that installs it.

    Attributes that are known after fetch():

    reference: where the image comes from, in the recipe's words
    digest: digest of the registry's manifest ('sha256:<hex>'), or None
    checksum: SHA-256 of the image file, or None where nobody can know it before it is built
    """

    digest = None
    checksum = None

    def __init__(self, block):
        self.block = block
        self.reference = ', '.join(block.source_names())

    @property
    def name(self):
        """File name of the installed image."""
        return '%s-%s.sif' % (self.block.name, self.block.full_version())

    @property
    def file(self):
        """Path of the finished image that gets installed."""
        return os.path.join(self.block.builddir, self.name)

    @property
    def identity(self):
        """Text of what the recipe says of the content: where it is the same, --rebuild keeps the image."""
        sources = ['%s=%s' % (source['name'], source['sha256']) for source in self.block.src]
        return ' '.join(sources + ['%s=%s' % (name, self.block.cfg[name]) for name in INGREDIENTS
                                   if self.block.cfg[name]])

    def fetch(self):
        """Get what needs a network, verified; called in the fetch step, after EasyBuild has the sources."""

    def build(self):
        """Make the image in the build directory, where it has to be made."""

    def install(self, path):
        """Put the image at `path`, at once and whole, or not at all; afterwards its checksum is known."""
        if self.block.dry_run:
            self.block.dry_run_msg("  copied image %s to %s", self.reference, path)
            return
        self.checksum = copy_verified(self.file, path, self.checksum)

    def installed(self):
        """The image has passed the sanity check: what other installations compare with may be noted."""


def images_directory(block):
    """Where images are downloaded to, and notes on them are kept: on the source path, off the home directory."""
    directories = source_directories(block.name, 'images')
    return writable_directory(directories) or directories[0]


def runtime_command(command, **settings):
    """A command with variables of the container runtime, which does not mind those that it does not know."""
    return ' '.join(['env'] + ['%s_%s=%s' % (runtime, name, shlex.quote(value)) for name, value in settings.items()
                               for runtime in ('APPTAINER', 'SINGULARITY')] + [command])


def activated(block, command):
    """A command in the image's conda environment, if it has one, as the one word that `bash -c` takes."""
    # what an image says of its conda environment, then what the recipe says; EasyBuild's own quoting takes
    # the last quotation mark for one of its own
    return shlex.quote('eval "${WITH_CONDA:-}"; %s; exec %s' % (block.cfg['conda_activation'], command))


def read_note(path, *names):
    """Values that a JSON file has under some names; all None where it is missing, damaged or lacks one of them."""
    try:
        with open(path) as file:
            note = json.load(file)
        return [note[name] for name in names]
    except (OSError, ValueError, KeyError, TypeError):
        return [None] * len(names)


def checksum_of(path):
    """SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for chunk in iter(lambda: file.read(CHUNK), b''):
            digest.update(chunk)
    return digest.hexdigest()


def require_checksum(path, found, expected):
    """Stop unless a file has its SHA-256, or EasyBuild was told to ignore checksums."""
    if found != expected and not build_option('ignore_checksums'):
        raise EasyBuildError("%s is damaged or another image: its SHA-256 is %s, expected is %s; get it again, or "
                             "correct the recipe", path, found, expected)


def copy_verified(source, target, checksum=None):
    """
    Copy a file so that `target` appears only when it is complete, on disk and verified; return its SHA-256.

    :param checksum: SHA-256 that it must have, None where it is not known
    """
    part = target + '.part'
    digest = hashlib.sha256()
    try:
        with open(source, 'rb') as original, open(part, 'wb') as copy:
            for chunk in iter(lambda: original.read(CHUNK), b''):
                digest.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if checksum:
            require_checksum(source, digest.hexdigest(), checksum)
        shutil.copymode(source, part)
        os.replace(part, target)
    except OSError as error:
        raise EasyBuildError("Copying %s to %s failed: %s", source, target, error.strerror or error) from error
    finally:
        if os.path.exists(part):
            remove_file(part)
    return digest.hexdigest()


def check_structure(path):
    """
    Stop if a file is no SIF image, or shorter than its own header says.

    The header: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go, type header.
    """
    with open(path, 'rb') as file:
        header = file.read(128)
    if header[32:41] != b'SIF_MAGIC' or len(header) < 128:
        raise EasyBuildError("%s is not an image in Singularity's format (SIF): it has no such header", path)
    data_offset, data_size = struct.unpack('<qq', header[112:128])
    size = os.path.getsize(path)
    if size < data_offset + data_size:
        raise EasyBuildError("%s is truncated: it has %d bytes of %d; get it again",
                             path, size, data_offset + data_size)

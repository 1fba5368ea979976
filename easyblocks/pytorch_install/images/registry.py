##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Images of registries, pinned by digest and downloaded in EasyBuild's fetch step.

For proxies, logins and certificates, configure the container runtime: its variables and files are not changed here.
"""
import contextlib
import datetime
import fcntl
import json
import os
import platform
import re
from typing import NamedTuple

from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.filetools import write_file

from pytorch_install.images.container_runtime import require_runtime
from pytorch_install.images.image_files import checksum_of, images_directory, read_note, require_checksum
from pytorch_install.images.pull import Pull, part_of, remove_stale_parts
from pytorch_install.images.signature import verify_signature
from pytorch_install.images.source import ImageSource
from pytorch_install.sources.directories import make_directory, protect, reason_for_distrust, source_directories

# <transport>://<repository>[:<tag>]@sha256:<digest>; a colon before a slash starts a port, not a tag
PINNED = re.compile(r'(?P<transport>docker|oras)://(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?'
                    r'@(?P<digest>sha256:[0-9a-f]{64})')

# library://<entity>/<collection>/<container>:sha256.<checksum of the image file>
LIBRARY = re.compile(r'(?P<transport>library)://(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)'
                     r':(?P<digest>sha256\.[0-9a-f]{64})')

TRANSPORTS = ['docker', 'oras', 'library']

DOCKER_HUB = 'docker.io'


class Pinned(NamedTuple):
    """A reference to one image; `uri` is for the runtime: some versions reject a tag with a digest."""

    transport: str
    repository: str
    digest: str
    uri: str

    @property
    def host(self):
        """Host of the registry. As in docker, a first part without dot and port is not a host (pytorch/pytorch)."""
        first, slash, _ = self.repository.partition('/')
        if slash and (re.search('[.:]', first) or first == 'localhost'):
            return first
        return 'the library' if self.transport == 'library' else DOCKER_HUB


def pinned(reference, parameter):
    """Parse a reference; EasyBuildError with advice if it is not pinned. `parameter` is the easyconfig parameter."""
    found = PINNED.fullmatch(reference) or LIBRARY.fullmatch(reference)
    if found:
        digest = found.group('digest')
        transport, repository = found.group('transport', 'repository')
        separator = '@' if transport != 'library' else ':'
        return Pinned(transport, repository, digest.replace('.', ':'),
                      '%s://%s%s%s' % (transport, repository, separator, digest))
    transport, _, rest = reference.partition('://')
    if transport == 'library':
        advice = "end it in ':sha256.<hash>', where <hash> is the output of `sha256sum` for the pulled image"
    else:
        advice = ("append '@sha256:<digest>', where <digest> is the output of "
                  "`skopeo inspect --raw docker://%s | sha256sum`" % rest.partition('@')[0])
    raise EasyBuildError("%s = '%s' is not pinned to one image by its digest: %s", parameter, reference, advice)


class RegistryImage(ImageSource):
    """An image that `image` names as docker://, oras:// or library://, with its digest."""

    def __init__(self, spec):
        super().__init__(spec)
        self.pinned = pinned(spec.image, 'image')
        self.digest = self.pinned.digest
        # docker:// has layers that are packed here; oras:// and library:// have image files
        self.is_made_here = self.pinned.transport == 'docker'

    @property
    def reference(self):
        """The reference in the recipe."""
        return self.spec.image

    @property
    def identity(self):
        """The digest, and the packing of layers."""
        packing = [self.spec.mksquashfs_args] if self.is_made_here else []
        return ' '.join([self.pinned.transport, self.digest] + packing)

    def file_in(self, directory):
        """Path of the finished download in a directory."""
        return os.path.join(directory, file_name(self.digest, '.sif'))

    def fetch(self):
        """Download, unless an earlier download is complete and unchanged."""
        self.require_runtime()
        # before making a directory: a user without write permission can use it
        image = self.find_anywhere()
        if not image:
            directory = images_directory(self.spec.software)
            make_directory(directory)
            with locked(os.path.join(directory, '.lock')) as alone:
                # another process may have completed its download while this one waited
                image = self.find(directory) or self.download(directory, alone)
        if self.spec.key:
            verify_signature(self.spec.runtime, image.file, self.spec.key)
        return image

    def require_runtime(self):
        """Stop if the host cannot download the image."""
        require_runtime(self.spec.runtime)

    def pull(self, alone):
        """The Pull of this image; `alone`: whether this process has the lock on the directory."""
        return Pull(self.reference, self.pinned, self.spec.runtime, self.spec.mksquashfs_args, alone)

    def find_anywhere(self):
        """The Image of a finished download on one of the source paths, or None."""
        for directory in source_directories(self.spec.software, 'images'):
            image = self.find(directory)
            if image:
                return image
        return None

    def find(self, directory):
        """The Image of an earlier download that is complete, packed with these options, and undamaged; or None."""
        path = self.file_in(directory)
        note = note_of(path)
        identity, checksum = read_note(note, 'identity', 'sha256')
        if not os.path.isfile(path) or identity != self.identity:
            return None
        # only the note has the checksum of what was downloaded or packed
        reason = reason_for_distrust(directory, note)
        if reason:
            print_warning("ignoring %s, downloading again: %s", path, reason)
            return None
        if checksum != checksum_of(path):
            print_warning("%s is damaged: its SHA-256 has changed since the download. Downloading again", path)
            return None
        print_msg("image %s: found at %s" % (self.reference, path))
        return self.describe()._replace(file=path, checksum=checksum)

    def download(self, directory, alone):
        """
        Download to a directory; return the Image.

        :param alone: whether this process has the lock on the directory
        """
        path = self.file_in(directory)
        remove_stale_parts(path)
        with self.pull(alone).to(path):
            found = None if alone else self.find(directory)
            if found:
                return found
            part = part_of(path)
            checksum = checksum_of(part)
            if self.pinned.transport == 'library':
                require_checksum(self.reference, 'sha256:' + checksum, self.digest)
            write_file(note_of(path), json.dumps({
                'reference': self.reference, 'identity': self.identity, 'sha256': checksum,
                'size': os.path.getsize(part),
                'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            }, indent=2) + '\n')
            protect(note_of(path))
            os.replace(part, path)
        return self.describe()._replace(file=path, checksum=checksum)


def file_name(digest, extension):
    """
    File name of a finished download.

    The digest of an index is that of the images for several machines, whose hosts may share a source path.
    """
    machine = platform.machine()
    return digest.replace(':', '-') + ('' if machine == 'x86_64' else '.' + machine) + extension


def note_of(path):
    """Path of the note on a download; a download without one counts as missing."""
    return path + '.json'


@contextlib.contextmanager
def locked(path):
    """Lock a directory for one download at a time; yields False if the file system has no locks."""
    # another user's file can be locked for reading
    foreign = os.path.exists(path) and not os.access(path, os.W_OK)
    with open(path, 'r' if foreign else 'a') as lock:
        alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_msg("another EasyBuild is downloading images to %s, waiting..." % os.path.dirname(path))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone

# SPDX-License-Identifier: GPL-2.0-only
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
from pytorch_install.images.image_files import checksum_of, images_directory, read_note
from pytorch_install.images.pull import Pull, part_of, remove_stale_parts
from pytorch_install.images.source import ImageSource
from pytorch_install.sources.directories import make_directory, protect, reason_for_distrust, source_directories

DOCKER = 'docker://'

# docker://<repository>[:<tag>]@sha256:<digest>; a colon before a slash starts a port, not a tag
PINNED = re.compile(DOCKER + r'(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)(:[\w.-]+)?'
                    r'@(?P<digest>sha256:[0-9a-f]{64})')

DOCKER_HUB = 'docker.io'


class Pinned(NamedTuple):
    """A reference to one image; `uri` is for the runtime: some versions reject a tag with a digest."""

    repository: str
    digest: str
    uri: str

    @property
    def host(self):
        """Host of the registry. As in docker, a first part without dot and port is not a host (pytorch/pytorch)."""
        first, slash, _ = self.repository.partition('/')
        if slash and (re.search('[.:]', first) or first == 'localhost'):
            return first
        return DOCKER_HUB


def pinned(reference, parameter):
    """Parse a reference; EasyBuildError with advice if it is not pinned. `parameter` is the easyconfig parameter."""
    found = PINNED.fullmatch(reference)
    if found:
        repository, digest = found.group('repository', 'digest')
        return Pinned(repository, digest, '%s%s@%s' % (DOCKER, repository, digest))
    if not reference.startswith(DOCKER):
        raise EasyBuildError("%s = '%s' does not begin with %s. Correct the recipe", parameter, reference, DOCKER)
    raise EasyBuildError("%s = '%s' is not pinned to one image by its digest: append '@sha256:<digest>', where "
                         "<digest> is the output of `skopeo inspect --raw %s | sha256sum`",
                         parameter, reference, reference.partition('@')[0])


class RegistryImage(ImageSource):
    """An image that `image` names as docker://, with its digest."""

    def __init__(self, spec):
        super().__init__(spec)
        self.pinned = pinned(spec.image, 'image')
        self.digest = self.pinned.digest

    @property
    def reference(self):
        """The reference in the recipe."""
        return self.spec.image

    @property
    def identity(self):
        """The digest, and the packing of layers."""
        return ' '.join(['docker', self.digest, self.spec.mksquashfs_args])

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
        return self.expect_image()._replace(file=path, checksum=checksum)

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
            write_file(note_of(path), json.dumps({
                'reference': self.reference, 'identity': self.identity, 'sha256': checksum,
                'size': os.path.getsize(part),
                'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            }, indent=2) + '\n')
            protect(note_of(path))
            os.replace(part, path)
        return self.expect_image()._replace(file=path, checksum=checksum)


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

##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Images of registries, pinned by digest and downloaded in EasyBuild's fetch step; called by sources.py.

Proxies, logins and certificates are the container runtime's own business: its variables and files are left alone.
"""
import collections
import contextlib
import datetime
import fcntl
import glob
import json
import os
import re
import socket
import tempfile
import time

from easybuild.tools.build_log import EasyBuildError, print_msg, print_warning
from easybuild.tools.filetools import mkdir, remove_dir, remove_file, write_file
from easybuild.tools.run import run_shell_cmd
from easybuild.tools.utilities import shell_quote

from pytorch_install.images.imagefile import (
    ImageSource,
    check_structure,
    checksum_of,
    images_directory,
    read_note,
    require_checksum,
    runtime_command,
)
from pytorch_install.images.signature import verify_signature
from pytorch_install.sources.directories import distrust, make_directory, protect, source_directories
from pytorch_install.sources.downloads import watched

ATTEMPTS = 3

# Seconds before the second attempt; the third waits twice as long.
PAUSE = 2

# <transport>://<repository>[:<tag>]@sha256:<digest>; a colon that a slash follows is a port, not a tag
PINNED = re.compile(r'(?P<transport>docker|oras)://(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)(:(?P<tag>[\w.-]+))?'
                    r'@(?P<digest>sha256:[0-9a-f]{64})')

# library://<entity>/<collection>/<container>:sha256.<checksum of the image file>
LIBRARY = re.compile(r'(?P<transport>library)://(?P<repository>[\w.-]+(:\d+(?=/))?(/[\w.-]+)*)'
                     r':(?P<digest>sha256\.[0-9a-f]{64})')

TRANSPORTS = ['docker', 'oras', 'library']


Pinned = collections.namedtuple('Pinned', 'transport repository digest uri')


def pinned(reference, parameter):
    """
    Take a reference apart into transport, repository and digest, or say how to pin it.

    Its `uri` is what the runtime gets: not every version takes a tag and a digest together.
    """
    found = PINNED.fullmatch(reference) or LIBRARY.fullmatch(reference)
    if found:
        digest = found.group('digest')
        transport, repository = found.group('transport', 'repository')
        separator = '@' if transport != 'library' else ':'
        return Pinned(transport, repository, digest.replace('.', ':'),
                      '%s://%s%s%s' % (transport, repository, separator, digest))
    transport, _, rest = reference.partition('://')
    if transport == 'library':
        advice = "end it in ':sha256.<hash>', where <hash> is what `sha256sum` says of the pulled image"
    else:
        advice = ("append '@sha256:<digest>', where <digest> is what `skopeo inspect --raw docker://%s | sha256sum` "
                  "says" % rest.partition('@')[0])
    raise EasyBuildError("%s = '%s' is not pinned to one image by its digest: %s", parameter, reference, advice)


class RegistryImage(ImageSource):
    """An image that `image` names as docker://, oras:// or library://, with its digest."""

    def __init__(self, block):
        super().__init__(block)
        self.reference = block.cfg['image']
        self.transport, self.repository, self.digest, self.uri = pinned(self.reference, 'image')
        self.directory = images_directory(block)

    @property
    def file(self):
        """The finished download on the source path."""
        return os.path.join(self.directory, self.digest.replace(':', '-') + '.sif')

    @property
    def identity(self):
        """The digest, and how layers are packed into a file here."""
        return ' '.join([self.transport, self.digest] + self.packing())

    def packing(self):
        """Arguments of the conversion; oras:// and library:// hold images that are ready."""
        return [self.block.cfg['mksquashfs_args']] if self.transport == 'docker' else []

    def fetch(self):
        """Download, unless an earlier download is there and unchanged."""
        self.block.require_runtime()
        # what is there can be used by those who may not write there
        if not self.is_anywhere():
            make_directory(self.directory)
            with locked(os.path.join(self.directory, '.lock')) as alone:
                # another process may have ended its download meanwhile
                if not self.is_there():
                    self.download(alone)
        if self.block.signing_key:
            verify_signature(self.block.runtime, self.file, self.block.signing_key)

    @property
    def note(self):
        """Path of the file that says what the finished download is; only with it the download counts."""
        return self.file + '.json'

    def is_anywhere(self):
        """Whether one of the source paths has a finished download; else `directory` is the one for a new download."""
        new = self.directory
        for directory in source_directories(self.block.name, 'images'):
            self.directory = directory
            if self.is_there():
                return True
        self.directory = new
        return False

    def is_there(self):
        """Whether an earlier download is complete, of this packing, and still what it was."""
        identity, checksum = read_note(self.note, 'identity', 'sha256')
        if not os.path.isfile(self.file) or identity != self.identity:
            return False
        # only the note says what layers were packed into, or what the registry sent
        reason = distrust(self.directory, self.note)
        if reason:
            print_warning("%s is not used, fetching again: %s", self.file, reason)
            return False
        self.checksum = checksum_of(self.file)
        if checksum != self.checksum:
            print_warning("%s is damaged, its SHA-256 is no longer that of the download: fetching again", self.file)
            return False
        print_msg("image %s: found at %s" % (self.reference, self.file))
        return True

    def download(self, alone):
        """
        Let the runtime download and convert, a few times if need be; what is complete is never fetched twice.

        :param alone: whether no other process downloads to the same directory, as far as it can be known
        """
        self.remove_stale_parts()
        process = '%s.%d' % (socket.gethostname(), os.getpid())
        part = '%s.%s.part' % (self.file, process)
        # a user's own, as the runtime lets nobody else read it; without a lock a process's own, which may be removed
        own_cache = '%s.%s.cache' % (self.file, os.getuid() if alone else process)
        settings = {}
        cache = os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR')
        if not cache:
            cache = settings['CACHEDIR'] = own_cache
            mkdir(own_cache)
        verb = 'pull'
        if self.transport == 'docker':
            verb = 'build'
            settings['MKSQUASHFS_ARGS'] = self.block.cfg['mksquashfs_args']
        command = '%s %s --force %s %s' % (self.block.runtime, verb, shell_quote(part), shell_quote(self.uri))
        complete = False
        try:
            self.run(runtime_command(command, **settings), cache)
            check_structure(part)
            if not alone and self.is_there():
                complete = True
                return
            self.checksum = checksum_of(part)
            if self.transport == 'library':
                require_checksum(self.reference, 'sha256:' + self.checksum, self.digest)
            write_file(self.note, json.dumps({
                'reference': self.reference, 'identity': self.identity, 'sha256': self.checksum,
                'size': os.path.getsize(part),
                'date': datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds'),
            }, indent=2) + '\n')
            protect(self.note)
            os.replace(part, self.file)
            complete = True
        finally:
            if os.path.exists(part):
                remove_file(part)
            if complete or not alone:
                self.remove_cache(own_cache)

    def remove_stale_parts(self):
        """Remove what processes of this host left that were killed; those of other hosts may be at work."""
        beginning = '%s.%s.' % (self.file, socket.gethostname())
        for part in glob.glob(glob.escape(beginning) + '*.part'):
            pid = part[len(beginning):-len('.part')]
            if pid.isdigit() and not is_running(int(pid)):
                with contextlib.suppress(EasyBuildError, OSError):  # another user's
                    remove_file(part)

    def remove_cache(self, directory):
        """Remove a cache that nobody needs, if possible: the image is there without."""
        try:
            remove_dir(directory)
        except (EasyBuildError, OSError) as error:
            self.block.log.warning("Could not remove %s: %s", directory, error)

    def run(self, command, cache):
        """Run the runtime's download until it succeeds; EasyBuildError with one sentence if it does not."""
        for attempt in range(1, ATTEMPTS + 1):
            print_msg("image %s: fetching, attempt %d of %d..." % (self.reference, attempt, ATTEMPTS))
            # what arrived is unpacked, packed and copied: a slow file system is no stalled registry
            with watched([cache, self.directory, work_directory()], 'image') as watch:
                result = run_shell_cmd(command, fail_on_error=False, hidden=True, stream_output=True)
            if result.exit_code == 0:
                return
            lines = result.output.strip().splitlines() or ["no output"]
            reason = re.sub(r'^FATAL:\s*', '', next((line for line in reversed(lines) if 'FATAL' in line), lines[-1]))
            if watch.stalled:
                # the runtime names what it has not whole by the digest, with a random number after it
                blobs = sorted({'sha256:' + name[:64] for name in watch.files if re.match(r'[0-9a-f]{64}\d', name)})
                reason = "%s stalled at %s: %s" % (self.repository.partition('/')[0],
                                                   ', '.join(blobs) or 'the beginning', watch.stalled)
            else:
                self.refuse_for_good(reason)
            if attempt < ATTEMPTS:
                print_msg("image %s: %s" % (self.reference, reason))
                time.sleep(attempt * PAUSE)
        raise EasyBuildError("Fetching %s failed %d times: %s; run the same `eb` again, layers that are complete are "
                             "not fetched twice", self.reference, ATTEMPTS, reason)

    def refuse_for_good(self, reason):
        """Stop where another attempt would meet the same answer."""
        if re.search('(?i)manifest.unknown|name.unknown|404 not found|does not exist in the library', reason):
            raise EasyBuildError("The registry has no image %s: look up the digest again, and correct the recipe",
                                 self.reference)
        if re.search('(?i)unauthorized|authentication required|403 forbidden|(?-i:DENIED)|resource is denied', reason):
            raise EasyBuildError("The registry does not give %s to this user: log in with `%s registry login "
                                 "--username <user> docker://%s` and run the same `eb` again",
                                 self.reference, self.block.runtime, self.repository.partition('/')[0])
        if self.transport == 'docker' and 'failed to get' not in reason:
            raise EasyBuildError("%s was fetched, and %s could not make an image of it: %s; run the same `eb` again "
                                 "when that is solved, nothing is fetched twice",
                                 self.reference, self.block.runtime, reason)


@contextlib.contextmanager
def locked(path):
    """Let one process at a time download to a directory; yields False where the file system has no locks."""
    # another user's file can be locked too
    foreign = os.path.exists(path) and not os.access(path, os.W_OK)
    with open(path, 'r' if foreign else 'a') as lock:
        alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print_msg("another EasyBuild downloads images to %s, waiting for it to end..." % os.path.dirname(path))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            alone = False
        yield alone


def is_running(pid):
    """Whether there is a process of this number, perhaps another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def work_directory():
    """Where the runtime unpacks and packs what it fetched."""
    return next((os.environ[name] for name in ('APPTAINER_TMPDIR', 'SINGULARITY_TMPDIR') if os.environ.get(name)),
                tempfile.gettempdir())

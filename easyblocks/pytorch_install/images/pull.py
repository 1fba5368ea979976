##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
One download of a registry's image by the container runtime, a few attempts if need be.
"""
import contextlib
import glob
import os
import re
import socket
import tempfile
import time
from typing import NamedTuple

from easybuild.base import fancylogger
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.filetools import mkdir, remove_dir, remove_file

from pytorch_install.images.container_runtime import runtime_variables
from pytorch_install.images.image_files import check_structure
from pytorch_install.runtime import run_command
from pytorch_install.sources.downloads import watched

ATTEMPTS = 3

# Seconds before the second attempt; the third waits twice as long.
PAUSE = 2

_log = fancylogger.getLogger('pull', fname=False)


class Pull(NamedTuple):
    """
    What to download, and how.

    reference: the image in the recipe's words, for messages
    pinned: the same, taken apart (registry.Pinned)
    runtime: command of the container runtime
    packing: arguments of mksquashfs for layers that are packed here
    alone: whether no other process downloads to the same directory, as far as it can be known
    """

    reference: str
    pinned: tuple
    runtime: str
    packing: str
    alone: bool

    @contextlib.contextmanager
    def to(self, path):
        """Download to `part_of(path)`, which the caller checks and renames; what is left over is removed then."""
        # a user's own, as the runtime lets nobody else read it; without a lock a process's own, which may be removed
        own_cache = '%s.%s.cache' % (path, os.getuid() if self.alone else this_process())
        part, complete = part_of(path), False
        try:
            self.download(part, own_cache)
            yield
            complete = True
        finally:
            if os.path.exists(part):
                remove_file(part)
            # the next attempt needs the layers that are complete
            if complete or not self.alone:
                remove_cache(own_cache)

    def download(self, part, own_cache):
        """Let the runtime download and convert."""
        settings = {}
        cache = os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR')
        if not cache:
            cache = settings['CACHEDIR'] = own_cache
            mkdir(own_cache)
        verb = 'pull'
        if self.pinned.transport == 'docker':
            verb = 'build'
            settings['MKSQUASHFS_ARGS'] = self.packing
        # what arrived is unpacked, packed and copied: a slow file system is no stalled registry
        places = [cache, os.path.dirname(part), work_directory()]
        self.try_often([self.runtime, verb, '--force', part, self.pinned.uri], runtime_variables(**settings), places)
        check_structure(part)

    def try_often(self, command, variables, places):
        """Run the runtime's download until it succeeds; EasyBuildError with one sentence if it does not."""
        for attempt in range(1, ATTEMPTS + 1):
            print_msg("image %s: fetching, attempt %d of %d..." % (self.reference, attempt, ATTEMPTS))
            with watched(places, 'image') as watch:
                result = run_command(command, variables, fail_on_error=False, hidden=True, stream_output=True)
            if result.exit_code == 0:
                return
            reason = self.reason(result.output, watch)
            if not watch.stalled:
                self.refuse_for_good(reason)
            if attempt < ATTEMPTS:
                print_msg("image %s: %s" % (self.reference, reason))
                time.sleep(attempt * PAUSE)
        raise EasyBuildError("Fetching %s failed %d times: %s; run the same `eb` again, layers that are complete are "
                             "not fetched twice", self.reference, ATTEMPTS, reason)

    def reason(self, output, watch):
        """Why an attempt failed."""
        if watch.stalled:
            # the runtime names what it has not whole by the digest, with a random number after it
            blobs = sorted({'sha256:' + name[:64] for name in watch.files if re.match(r'[0-9a-f]{64}\d', name)})
            return "%s stalled at %s: %s" % (self.pinned.repository.partition('/')[0],
                                             ', '.join(blobs) or 'the beginning', watch.stalled)
        lines = output.strip().splitlines() or ["no output"]
        return re.sub(r'^FATAL:\s*', '', next((line for line in reversed(lines) if 'FATAL' in line), lines[-1]))

    def refuse_for_good(self, reason):
        """Stop where another attempt would meet the same answer."""
        if re.search('(?i)manifest.unknown|name.unknown|404 not found|does not exist in the library', reason):
            raise EasyBuildError("The registry has no image %s: look up the digest again, and correct the recipe",
                                 self.reference)
        if re.search('(?i)unauthorized|authentication required|403 forbidden|(?-i:DENIED)|resource is denied', reason):
            raise EasyBuildError("The registry does not give %s to this user: log in with `%s registry login "
                                 "--username <user> docker://%s` and run the same `eb` again",
                                 self.reference, self.runtime, self.pinned.repository.partition('/')[0])
        if self.pinned.transport == 'docker' and 'failed to get' not in reason:
            raise EasyBuildError("%s was fetched, and %s could not make an image of it: %s; run the same `eb` again "
                                 "when that is solved, nothing is fetched twice", self.reference, self.runtime, reason)


def this_process():
    """A name for this process among those of all hosts."""
    return '%s.%d' % (socket.gethostname(), os.getpid())


def part_of(path):
    """Where this process downloads to before the file is complete."""
    return '%s.%s.part' % (path, this_process())


def remove_stale_parts(path):
    """Remove what processes of this host left that were killed; those of other hosts may be running."""
    beginning = '%s.%s.' % (path, socket.gethostname())
    for part in glob.glob(glob.escape(beginning) + '*.part'):
        pid = part[len(beginning):-len('.part')]
        if pid.isdigit() and not is_running(int(pid)):
            with contextlib.suppress(EasyBuildError, OSError):  # another user's
                remove_file(part)


def remove_cache(directory):
    """Remove a cache, if possible: the image does not need it."""
    try:
        remove_dir(directory)
    except (EasyBuildError, OSError) as error:
        _log.warning("Could not remove %s: %s", directory, error)


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

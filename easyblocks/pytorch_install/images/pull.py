# SPDX-License-Identifier: GPL-2.0-only
"""
Downloading a registry's image with the container runtime, in several attempts.
"""
import contextlib
import glob
import os
import platform
import re
import socket
import time
from typing import NamedTuple

from easybuild.base import fancylogger
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.filetools import mkdir, remove_dir, remove_file

from pytorch_install.images.container_runtime import runtime_variables
from pytorch_install.images.image_files import check_structure, require_machine
from pytorch_install.runtime import run_command

ATTEMPTS = 3

# Seconds before the second attempt; the third waits twice as long.
PAUSE = 2

_log = fancylogger.getLogger('pull', fname=False)


class Pull(NamedTuple):
    """
    A download.

    reference: the recipe's reference, for messages
    pinned: the same, parsed (registry.Pinned)
    runtime: command of the container runtime
    packing: arguments of mksquashfs, for layers
    alone: whether this process has the lock on the directory
    """

    reference: str
    pinned: tuple
    runtime: str
    packing: str
    alone: bool

    @contextlib.contextmanager
    def to(self, path):
        """Download to `part_of(path)`, which the caller verifies and renames; then remove leftovers."""
        # per user: the runtime makes it private; without the lock per process, so that it can be removed
        own_cache = '%s.%s.cache' % (path, os.getuid() if self.alone else this_process())
        part, complete = part_of(path), False
        try:
            self.download(part, own_cache)
            yield
            complete = True
        finally:
            if os.path.exists(part):
                remove_file(part)
            # after a failure, it has complete layers for the next attempt
            if complete or not self.alone:
                remove_cache(own_cache)

    def download(self, part, own_cache):
        """Let the runtime download and convert the image."""
        settings = {'MKSQUASHFS_ARGS': self.packing}
        if not (os.environ.get('APPTAINER_CACHEDIR') or os.environ.get('SINGULARITY_CACHEDIR')):
            settings['CACHEDIR'] = own_cache
            mkdir(own_cache)
        command = [self.runtime, 'build', '--force', part, self.pinned.uri]
        self.run_until_success(command, part, runtime_variables(**settings))
        check_structure(part)
        # with the digest of one image instead of an index, the runtime downloads it for any host
        require_machine(part, self.reference)

    def run_until_success(self, command, part, variables):
        """Run a command that makes `part` up to ATTEMPTS times; EasyBuildError with the last reason if it fails."""
        for attempt in range(1, ATTEMPTS + 1):
            if os.path.exists(part):  # enroot does not replace a file of the attempt before
                remove_file(part)
            print_msg("image %s: fetching, attempt %d of %d..." % (self.reference, attempt, ATTEMPTS))
            result = run_command(command, variables, fail_on_error=False, hidden=True, stream_output=True)
            if result.exit_code == 0:
                return
            reason = self.reason(result.output)
            self.stop_if_permanent(reason)
            if attempt < ATTEMPTS:
                print_msg("image %s: %s" % (self.reference, reason))
                time.sleep(attempt * PAUSE)
        raise EasyBuildError("Fetching %s failed %d times: %s. Run the same `eb` again; it keeps the layers that "
                             "are complete", self.reference, ATTEMPTS, reason)

    def reason(self, output):
        """Why an attempt failed."""
        lines = output.strip().splitlines() or ["no output"]
        return re.sub(r'^FATAL:\s*', '', next((line for line in reversed(lines) if 'FATAL' in line), lines[-1]))

    def stop_if_permanent(self, reason):
        """Stop if another attempt would fail for the same reason."""
        if re.search('(?i)manifest.unknown|name.unknown|404 not found', reason):
            raise EasyBuildError("Image not found in the registry: %s. Look up its digest, and correct the recipe",
                                 self.reference)
        if re.search('no child with platform|no image found in (manifest list|image index)', reason):
            raise EasyBuildError("%s has no image for %s, the machine of this host. Choose another image, or install "
                                 "it on another host", self.reference, platform.machine())
        if re.search('(?i)unauthorized|authentication required|403 forbidden|(?-i:DENIED)|resource is denied', reason):
            raise EasyBuildError("The registry denies this user access to %s. Log in with `%s registry login "
                                 "--username <user> docker://%s` and run the same `eb` again",
                                 self.reference, self.runtime, self.pinned.host)
        if 'failed to get' not in reason:
            raise EasyBuildError("%s was downloaded, but %s cannot convert it: %s. Solve this, and run the same `eb` "
                                 "again; it keeps the download", self.reference, self.runtime, reason)


def this_process():
    """Name of this process, unique among hosts."""
    return '%s.%d' % (socket.gethostname(), os.getpid())


def part_of(path):
    """Path that this process downloads to until the file is complete."""
    return '%s.%s.part' % (path, this_process())


def remove_stale_parts(path):
    """Remove parts of killed processes of this host; those of other hosts may still run."""
    beginning = '%s.%s.' % (path, socket.gethostname())
    for part in glob.glob(glob.escape(beginning) + '*.part'):
        pid = part[len(beginning):-len('.part')]
        if pid.isdigit() and not is_running(int(pid)):
            with contextlib.suppress(EasyBuildError, OSError):  # another user's
                remove_file(part)


def remove_cache(directory):
    """Remove a cache that is no longer needed, if possible."""
    try:
        remove_dir(directory)
    except (EasyBuildError, OSError) as error:
        _log.warning("Could not remove %s: %s", directory, error)


def is_running(pid):
    """Whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True

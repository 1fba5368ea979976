# SPDX-License-Identifier: GPL-2.0-only
"""
An installation as a transaction: complete, or as it was before, wherever `eb` ends. The paths on disk are the state:

    .<version>.unfinished/              the installation directory may be incomplete, and has no module
    .<version>.unfinished/previous/     the previous installation directory, empty if there was none; until it exists,
                                        the installation directory is unchanged
    .<version>.withdrawn                the previous module file, beside the new one's path
    .<version>.discarded/               to be removed, if need be by the next `eb`
    .<version>.replaced/previous/       the previous installation, for containers that still run: they bind /runscripts
                                        and /payload from it; kept until the next rebuild

EasyBuild's cleanupoldinstall = False does not serve: 5.1 moves the directory, which is one line of `begin`; 5.4 copies
it and empties the one that running containers bind. It restores nothing, and keeps a copy of each rebuild.
"""
import contextlib
import os

from easybuild.base import fancylogger
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.filetools import copy_file, find_backup_name_candidate, mkdir, remove_dir, remove_file

_log = fancylogger.getLogger('installation', fname=False)


def hidden(path, what):
    """Path beside a file or directory that module tools do not see."""
    directory, name = os.path.split(path)
    return os.path.join(directory, '.%s.%s' % (name, what))


class Installation:
    """The installation directory of one module, and its module file."""

    def __init__(self, directory, module_file, keeps_replaced=False):
        self.directory = directory
        self.unfinished = hidden(directory, 'unfinished')
        self.discarded = hidden(directory, 'discarded')
        self.replaced = hidden(directory, 'replaced')
        self.previous = os.path.join(self.unfinished, 'previous')
        self.module = module_file
        self.withdrawn = hidden(module_file, 'withdrawn')
        self.part = hidden(module_file, 'part')
        # removed before an installation, and when it ends or is rolled back
        self.disposable = [self.discarded]
        # whether the previous installation stays until the next one, for processes that have its directories open
        self.keeps_replaced = keeps_replaced
        self.begun = False
        # whether the previous installation was restored after an `eb` that was killed
        self.is_restored = False

    def begin(self):
        """
        Withdraw the module, then put the installation directory aside; from here on, both can be restored.

        EasyBuildError if another `eb` may be at work, which happens with --ignore-locks only.
        """
        if os.path.isdir(self.unfinished):
            raise EasyBuildError("Another `eb` is installing %s, or was killed. Wait for it, or, if it was killed, run "
                                 "`eb` without --ignore-locks", self.directory)
        self.begun = True
        mkdir(self.unfinished, parents=True)
        if os.path.exists(self.module):
            os.rename(self.module, self.withdrawn)
        mkdir(self.directory, parents=True)
        os.rename(self.directory, self.previous)

    @property
    def has_module(self):
        """Whether the installation has a module, or had one before it was put aside."""
        return os.path.exists(self.module) or os.path.exists(self.withdrawn)

    def before(self, name):
        """Present path of a file of the previous installation; it need not exist."""
        directory = self.previous if os.path.isdir(self.previous) else self.directory
        return os.path.join(directory, name)

    def finish(self):
        """The new installation is complete: discard the previous one, or keep it as replaced."""
        if os.path.isdir(self.unfinished):
            if os.path.isdir(self.discarded):  # an earlier one, with files that jobs have open: NFS keeps them
                os.rename(self.discarded, find_backup_name_candidate(self.discarded))
            target = self.discarded
            if self.keeps_replaced and os.listdir(self.previous):
                target = self.replaced
                if os.path.isdir(target):
                    os.rename(target, self.discarded)
            os.rename(self.unfinished, target)
        self.begun = False

    def roll_back(self):
        """Remove the incomplete installation and restore the previous one; can be killed and called again."""
        if os.path.isdir(self.previous):
            if os.path.isdir(self.directory):
                os.rename(self.directory, os.path.join(self.unfinished, 'incomplete-%d' % os.getpid()))
            os.rename(self.previous, self.directory)
        if os.path.isdir(self.unfinished):
            if os.path.exists(self.withdrawn):
                os.replace(self.withdrawn, self.module)
            os.rename(self.unfinished, self.discarded)
            self.discard()
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)  # if empty: there was none, or EasyBuild made it in the fetch step

    def recover(self):
        """Clean up after an `eb` that was killed or stopped; the caller holds the lock."""
        self.discard()
        remove_file(self.part)
        if os.path.isdir(self.unfinished):
            print_msg("an earlier installation in %s did not end: cleaning up..." % self.directory)
            self.roll_back()
            self.is_restored = self.has_module

    def discard(self):
        """Remove what is no longer needed; if that fails, the next run tries again."""
        if not os.path.isdir(self.unfinished):
            remove_file(self.withdrawn)
        for directory in self.disposable:
            try:
                # removes links, such as that to user-software, but not their targets
                remove_dir(directory)
            except (EasyBuildError, OSError) as error:
                _log.warning("Could not remove %s, the next installation will try again: %s", directory, error)


def keep_file(path, target):
    """Take a file of the previous installation over, as a hard link if possible."""
    try:
        os.link(path, target)
    except OSError as error:
        _log.info("%s cannot be linked (%s): copying it", path, error)
        copy_file(path, target)

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
    """The installation directory of one module, and the files that may be this module."""

    def __init__(self, directory, module_file, keeps_replaced=False):
        self.directory = directory
        self.unfinished, self.discarded, self.replaced = (
            hidden(self.directory, state) for state in ('unfinished', 'discarded', 'replaced'))
        self.previous = os.path.join(self.unfinished, 'previous')
        name = module_file[:-len('.lua')] if module_file.endswith('.lua') else module_file
        # both syntaxes: EasyBuild may have been configured for the other one before
        self.modules = {path: hidden(path, 'withdrawn') for path in (name, name + '.lua')}
        self.part = hidden(module_file, 'part')
        # removed before an installation, and when it ends or is rolled back
        self.disposable = [self.discarded]
        # whether the previous installation stays until the next one, for processes that have its directories open
        self.keeps_replaced = keeps_replaced
        self.begun = False

    def begin(self):
        """Withdraw the module, then put the installation directory aside; from here on, both can be restored."""
        self.recover()
        self.begun = True
        mkdir(self.unfinished, parents=True)
        for module, withdrawn in self.modules.items():
            if os.path.exists(module):
                os.rename(module, withdrawn)
        mkdir(self.directory, parents=True)
        os.rename(self.directory, self.previous)

    @property
    def has_module(self):
        """Whether the installation has a module, or had one before it was put aside."""
        return any(os.path.exists(path) for paths in self.modules.items() for path in paths)

    def before(self, name):
        """Present path of a file of the previous installation; it need not exist."""
        return os.path.join(self.previous if os.path.isdir(self.previous) else self.directory, name)

    def finish(self):
        """The new installation is complete: discard the previous one, or keep it as replaced."""
        if os.path.isdir(self.unfinished):
            keep = self.keeps_replaced and os.listdir(self.previous)
            if os.path.isdir(self.discarded):  # an earlier one, with files that jobs have open: NFS keeps them
                os.rename(self.discarded, find_backup_name_candidate(self.discarded))
            if keep and os.path.isdir(self.replaced):
                os.rename(self.replaced, self.discarded)
            os.rename(self.unfinished, self.replaced if keep else self.discarded)
        self.begun = False

    def roll_back(self):
        """Remove the incomplete installation and restore the previous one; can be killed and called again."""
        if os.path.isdir(self.previous):
            if os.path.isdir(self.directory):
                os.rename(self.directory, os.path.join(self.unfinished, 'incomplete-%d' % os.getpid()))
            os.rename(self.previous, self.directory)
        if os.path.isdir(self.unfinished):
            for module, withdrawn in self.modules.items():
                if os.path.exists(withdrawn):
                    os.replace(withdrawn, module)
            os.rename(self.unfinished, self.discarded)
            self.discard()
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)  # if empty: there was none, or EasyBuild made it in the fetch step

    def recover(self):
        """Clean up after an `eb` that was killed; the caller holds the lock."""
        self.discard()
        for path in [hidden(module, 'part') for module in self.modules]:
            remove_file(path)
        if os.path.isdir(self.unfinished):
            print_msg("an installation in %s was killed: cleaning up..." % self.directory)
            self.roll_back()

    def discard(self):
        """Remove what is no longer needed; if that fails, the next run tries again."""
        for withdrawn in [] if os.path.isdir(self.unfinished) else self.modules.values():
            remove_file(withdrawn)
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

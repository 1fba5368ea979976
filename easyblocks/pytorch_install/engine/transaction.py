##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
An installation as a transaction: whole or as it was before, wherever `eb` ends; called by pytorchmodule.py.

Until the new installation is complete, the one before it is in a hidden directory beside the installation directory,
so that an error brings it back at once, and the next `eb` does after a kill. What is on disk tells how far it got:

    .<version>.unfinished/              the installation directory may be incomplete, and no module leads to it
    .<version>.unfinished/modules/      the module files as they were before
    .<version>.unfinished/previous/     the installation directory as it was before, empty where there was none;
                                        before it exists, the installation directory is as it was
    .<version>.discarded/               to be removed, by the next `eb` if need be
    .<version>.replaced/previous/       the installation before the one that is there, for containers that still run:
                                        /runscripts and /payload are bound from it; kept until the next rebuild
"""
import contextlib
import os
import shutil
import stat

from easybuild.base import fancylogger
from easybuild.tools.build_log import EasyBuildError, print_msg
from easybuild.tools.filetools import (
    adjust_permissions,
    copy_file,
    find_backup_name_candidate,
    mkdir,
    remove_dir,
    remove_file,
)

_log = fancylogger.getLogger('installation', fname=False)


class Installation:
    """The installation directory of one module, and the files that may be this module."""

    def __init__(self, directory, module_file):
        """
        :param directory: the installation directory
        :param module_file: path of the module file in either syntax
        """
        # a site may have moved it to another file system: everything below happens there, and the link stays
        self.is_link = os.path.islink(directory)
        directory = os.path.realpath(directory) if self.is_link else directory
        beside = os.path.join(os.path.dirname(directory), '.' + os.path.basename(directory))
        self.directory = directory
        self.unfinished = beside + '.unfinished'
        self.discarded = beside + '.discarded'
        self.replaced = beside + '.replaced'
        self.previous = os.path.join(self.unfinished, 'previous')
        self.withdrawn = os.path.join(self.unfinished, 'modules')
        self.module_directory, name = os.path.split(module_file)
        name = name[:-len('.lua')] if name.endswith('.lua') else name
        # Tcl and Lua: another configuration of EasyBuild may have written the other one
        self.module_names = [name, name + '.lua']
        # removed before an installation, and when it ends or is rolled back
        self.disposable = [self.discarded]
        # whether the installation before this one stays until the next, as processes may use it by its directories
        self.keeps_replaced = False
        self.begun = False

    def begin(self):
        """Take the module away, then put the installation directory aside: from here on both may come back."""
        self.recover()
        self.begun = True
        mkdir(self.withdrawn, parents=True)
        present = [name for name in self.module_names if os.path.exists(self.module_file(name))]
        for name in present:
            shutil.copy2(self.module_file(name), self.withdrawn)
        for name in present:
            remove_file(self.module_file(name))
        mkdir(self.directory, parents=True)
        os.rename(self.directory, self.previous)
        if self.is_link:
            mkdir(self.directory)  # EasyBuild cannot make it through the link

    @property
    def has_module(self):
        """Whether a module leads to the installation, or did before it was put aside."""
        return any(os.path.exists(os.path.join(directory, name)) for name in self.module_names
                   for directory in (self.module_directory, self.withdrawn))

    def before(self, name):
        """Where a file of the installation before this one is now; it need not exist."""
        return os.path.join(self.previous if os.path.isdir(self.previous) else self.directory, name)

    def finish(self):
        """The new installation is complete: the one before it may be discarded."""
        if os.path.isdir(self.unfinished):
            keep = self.keeps_replaced and os.listdir(self.previous)
            if os.path.isdir(self.discarded):  # of before, with files that jobs have open: NFS keeps them
                os.rename(self.discarded, find_backup_name_candidate(self.discarded))
            if keep and os.path.isdir(self.replaced):
                os.rename(self.replaced, self.discarded)
            os.rename(self.unfinished, self.replaced if keep else self.discarded)
        self.begun = False

    def roll_back(self):
        """Remove what is incomplete, and bring back what was there before; may be killed and called again."""
        if os.path.isdir(self.previous):
            if os.path.isdir(self.directory):
                os.rename(self.directory, os.path.join(self.unfinished, 'incomplete-%d' % os.getpid()))
            os.rename(self.previous, self.directory)
        if os.path.isdir(self.unfinished):
            # a module that is still there was never taken away, and its copy need not be whole
            for name in os.listdir(self.withdrawn) if os.path.isdir(self.withdrawn) else []:
                if not os.path.exists(self.module_file(name)):
                    part = self.part(self.module_file(name))
                    shutil.copy2(os.path.join(self.withdrawn, name), part)
                    os.replace(part, self.module_file(name))
            os.rename(self.unfinished, self.discarded)
            self.discard()
        with contextlib.suppress(OSError):
            os.rmdir(self.directory)  # where nothing is in it: there was none, or EasyBuild made it in the fetch step

    def recover(self):
        """Clean up after a run that was killed; the caller holds the lock."""
        self.discard()
        for name in self.module_names:
            part = self.part(self.module_file(name))
            if os.path.exists(part):
                remove_file(part)
        if os.path.isdir(self.unfinished):
            print_msg("an installation in %s was killed: cleaning up..." % self.directory)
            self.roll_back()

    def discard(self):
        """Remove what nobody needs; if that fails, the next run tries again."""
        for directory in self.disposable:
            try:
                # links in it, as to user-software, are removed, never what they lead to
                remove_dir(directory)
            except (EasyBuildError, OSError) as error:
                _log.warning("Could not remove %s, the next installation will try again: %s", directory, error)

    def module_file(self, name):
        """Path of a module file."""
        return os.path.join(self.module_directory, name)

    @staticmethod
    def part(module_file):
        """Path beside a module file, of a name that no module tool shows, for it to be written to."""
        directory, name = os.path.split(module_file)
        return os.path.join(directory, '.%s.part' % name)


def keep_file(path, target):
    """Let a file of the installation before be in the new one too: under a second name, where that is possible."""
    try:
        os.link(path, target)
    except OSError as error:
        _log.info("%s cannot be linked (%s): copying it", path, error)
        copy_file(path, target)


def show_to_root(modules):
    """Let Lmod find the sanity check's modules, which it hides from root where others may not read them (--umask)."""
    # the directory around them is this user's alone
    adjust_permissions(modules, stat.S_IROTH)

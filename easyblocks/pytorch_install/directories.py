# SPDX-License-Identifier: GPL-2.0-only
"""
Directories for downloads and notes on EasyBuild's source path, and whether the notes can be trusted.

A note has the hash of an image for which the recipe has none.
"""
import grp
import os
import pwd
import stat

from easybuild.easyblocks.generic.lockedvenv import is_writable
from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import mkdir
from easybuild.tools.utilities import shell_quote


def source_directories(name, kind=''):
    """Directories of sources, or of downloads of a kind, one for each path of --sourcepath."""
    return [os.path.join(path, letter_dir_for(name), name, kind).rstrip('/') for path in source_paths()]


def writable_directory(directories):
    """The first directory that this user can write to, or can create; None if there is none."""
    return next(filter(is_writable, directories), None)


def reason_for_distrust(*paths):
    """
    Why files or directories cannot be trusted, and what to do; None if they can be, or do not exist.

    Trusted owners are root, the user who installs and the owner of EasyBuild's source path. With
    --group-writable-installdir, a group that this user is in is trusted too.
    """
    owners = {0, os.geteuid(), *(os.stat(path).st_uid for path in source_paths() if os.path.exists(path))}
    for path in filter(os.path.exists, paths):
        status = os.stat(path)
        user, group = name_of(pwd.getpwuid, status.st_uid), name_of(grp.getgrgid, status.st_gid)
        remedy = "Remove its contents if they are not yours, then: chmod go-w %s" % shell_quote(path)
        if status.st_mode & stat.S_IWOTH:
            return "every user can write to %s. %s" % (path, remedy)
        installs = group_installs(status.st_gid)
        if status.st_mode & stat.S_IWGRP and not installs and not is_private(group, user):
            return ("group %s can write to %s. %s; or, if this group installs software together, configure EasyBuild "
                    "with --group-writable-installdir" % (group, path, remedy))
        if status.st_uid not in owners and not (installs and status.st_gid in groups_of(user)):
            return ("%s belongs to user %s. Let that user install, or configure another --sourcepath"
                    % (path, user))
    return None


def require_trust(*paths):
    reason = reason_for_distrust(*paths)
    if reason:
        raise EasyBuildError("The notes of an earlier installation cannot be trusted: %s", reason)


def make_directory(path):
    """Make a directory that only trusted users can write to, with its parents."""
    if not os.path.isdir(path):
        mkdir(path, parents=True)
        protect(path)


def protect(path):
    """Take write permission from others, whatever the umask; a group that installs keeps it."""
    status = os.stat(path)
    if not group_installs(status.st_gid):
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def group_installs(gid):
    """Whether EasyBuild gives this group write permission on installations, and the user is in it."""
    return bool(build_option('group_writable_installdir')) and (
        os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()))


def is_private(group, user):
    """Whether a group is a user's private one: it has the user's name and no other members."""
    if group != user:
        return False
    try:
        return not set(grp.getgrnam(group).gr_mem) - {user}
    except KeyError:
        return False


def groups_of(user):
    try:
        return os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return []


def name_of(entry, number):
    try:
        return entry(number)[0]
    except KeyError:
        return str(number)

##
# This file is part of the PyTorch recipes; licence: GPL-2.0, as for EasyBuild, whose classes it extends.
##
"""
Directories on EasyBuild's source path where downloads are kept with notes on them, and whether notes can be believed.

Called by wheels.py, and by images/. A hash that the recipe or its lock has needs no such note.
"""
import grp
import os
import pwd
import stat

from easybuild.framework.easyconfig.easyconfig import letter_dir_for
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import build_option, source_paths
from easybuild.tools.filetools import mkdir
from easybuild.tools.utilities import shell_quote


def source_directories(name, kind='', paths=None):
    """Where sources may be, or downloads of a kind: one directory for each path of EasyBuild's --sourcepath."""
    return [os.path.join(path, letter_dir_for(name), name, kind).rstrip('/') for path in paths or source_paths()]


def writable_directory(directories):
    """The first that files can be made in, or that can be made; None where there is none."""
    for directory in directories:
        present = directory
        while not os.path.exists(present):
            present = os.path.dirname(present)
        if os.path.isdir(present) and os.access(present, os.W_OK | os.X_OK):
            return directory
    return None


def distrust(*paths):
    """
    Why files or directories cannot be believed, with what to do, or None; those that do not exist can.

    Trusted are root, the user who installs and the owner of EasyBuild's source path; and where EasyBuild is told that a
    group installs software (--group-writable-installdir), that group, if the user is in it.
    """
    owners = {0, os.geteuid(), *(os.stat(path).st_uid for path in source_paths() if os.path.exists(path))}
    for path in filter(os.path.exists, paths):
        status = os.stat(path)
        user, group = name_of(pwd.getpwuid, status.st_uid), name_of(grp.getgrgid, status.st_gid)
        remedy = "Remove what it holds if that is not yours, then: chmod go-w %s" % shell_quote(path)
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
    """Stop with `distrust`'s reason."""
    reason = distrust(*paths)
    if reason:
        raise EasyBuildError("What an earlier installation noted cannot be trusted: %s", reason)


def make_directory(path):
    """Make a directory for notes to be trusted, with the directories above it."""
    if not os.path.isdir(path):
        mkdir(path, parents=True)
        protect(path)


def protect(path):
    """Let others not write to what this process made, whatever the umask, unless their group installs."""
    status = os.stat(path)
    if not group_installs(status.st_gid):
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def group_installs(gid):
    """Whether the site lets this group, which the user is in, change what EasyBuild installs."""
    return bool(build_option('group_writable_installdir')) and (
        os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()))


def is_private(group, user):
    """Whether a group is the one that many systems make for each user, of the user's name and without members."""
    if group != user:
        return False
    try:
        return not set(grp.getgrnam(group).gr_mem) - {user}
    except KeyError:
        return False


def groups_of(user):
    """Numbers of the groups that a user is in."""
    try:
        return os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:
        return []


def name_of(entry, number):
    """The name of a user or group, its number where it has none."""
    try:
        return entry(number)[0]
    except KeyError:
        return str(number)

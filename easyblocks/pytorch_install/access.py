# SPDX-License-Identifier: GPL-2.0-only
"""
Who can read an installation: a check before the long steps, and of the host's files that it links to.
"""
import grp
import os
import stat
from pathlib import Path

from easybuild.tools.build_log import EasyBuildError, print_warning
from easybuild.tools.config import build_option


def check_access(*directories):
    """Stop if those who shall use the module could not read what `eb` makes in directories; warn if all can write."""
    mask = os.umask(0)
    os.umask(mask)
    if not mask & stat.S_IWOTH:
        print_warning("umask %03o: all users can change this installation. Run `eb --umask=022`" % mask)
    if not mask & stat.S_IXOTH or build_option('umask') and not build_option('group'):
        return
    if not build_option('group'):
        raise EasyBuildError("umask %03o: other users could not load the module. Run `eb --umask=022`, or "
                             "`eb --umask=%03o` to install it for yourself", mask, mask)
    for directory in map(Path, directories):
        parent = next(path for path in (directory, *directory.parents) if path.is_dir())
        check_new_directories(parent, build_option('group'))


def check_new_directories(parent, group):
    """Stop if directories that are made in a directory would not belong to a group."""
    status = parent.stat()
    is_inherited = status.st_mode & stat.S_ISGID
    number = status.st_gid if is_inherited else os.getegid()
    if number != grp.getgrnam(group).gr_gid:
        raise EasyBuildError("New directories in %s would not belong to group %s, which could not load the module. Run "
                             "`chgrp %s %s` and `chmod g+rxs %s`", parent, group, group, parent, parent)


def first_unreadable(path):
    """The first directory above a path, or its file, that is missing or that other users cannot read; or None."""
    path = Path(path).resolve()
    for part in (*reversed(path.parents), path):
        needed = stat.S_IROTH if part == path else stat.S_IXOTH
        if not (part.exists() and part.stat().st_mode & needed):
            return part
    return None

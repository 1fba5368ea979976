# SPDX-License-Identifier: GPL-2.0-only
"""
Who can read an installation, and the host's files that it links to: checks before the long steps.
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
    group = build_option('group')
    if not mask & stat.S_IWOTH:
        print_warning("umask %03o: all users can change this installation. Run `eb --umask=022`" % mask)
    if group:
        for directory in map(Path, directories):
            require_group(directory, group)
        if mask & stat.S_IXGRP:
            raise EasyBuildError("umask %03o: group %s could not load the module. Run `eb --umask=027`", mask, group)
    elif mask & stat.S_IXOTH and not build_option('umask'):
        raise EasyBuildError("umask %03o: other users could not load the module. Run `eb --umask=022`, or "
                             "`eb --umask=%03o` if they shall not", mask, mask)


def require_group(directory, group):
    """Stop if members of a group cannot enter a directory or one above it; EasyBuild gives new ones to the group."""
    number = grp.getgrnam(group).gr_gid
    for path in filter(Path.is_dir, (directory, *directory.parents)):
        status = path.stat()
        is_members = status.st_gid == number and status.st_mode & stat.S_IXGRP
        if not (is_members or status.st_mode & stat.S_IXOTH):
            raise EasyBuildError("Group %s cannot enter %s, and could not load the module. Run `chgrp %s %s` and "
                                 "`chmod g+rxs %s`", group, path, group, path, path)


def is_for_others(directory):
    """Whether other users could read what this process makes in a directory, which may not exist yet."""
    mask = os.umask(0)
    os.umask(mask)
    existing = next(filter(Path.exists, Path(directory).parents))
    return not mask & stat.S_IXOTH and not first_unreadable(existing)


def first_unreadable(path):
    """The first directory above a path, or its directory or program itself, that other users cannot use; or None."""
    path = Path(path).resolve()
    for part in (*reversed(path.parents), path):
        if not part.stat().st_mode & stat.S_IXOTH:
            return part
    return None

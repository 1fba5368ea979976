# SPDX-License-Identifier: BSD-3-Clause
"""Directories that no other user can read, fill or replace; for caches, dumps, and copies of an image.

A name under `/tmp` can be guessed and created first by any user: a directory that is not private is not used.
"""

import os

from pytorch_launch import read

#: A user without a number in this user namespace, such as root (user_namespaces(7)).
NOBODY = 65534
MOST_LINKS = 40  # path_resolution(7)


def make_private(*paths):
    """Make the directories that are missing; return why one of them is not private or cannot be made, or None.

    Once the first is private, no other user can replace what is below it, nor the directory itself (`unsuitable`).
    """
    for path in paths:
        try:
            os.mkdir(path, 0o700)
            fault = None
        except FileExistsError:
            fault = not_private(path)
        except OSError as error:
            fault = f"{path}: {error.strerror}"
        if fault:
            return fault
    return None


def not_private(path):
    """Why a path is no directory of this user alone, None if it is."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if found.st_mode & 0o170000 != 0o040000:  # inode(7)
        return f"{path} is not a directory"
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return f"{path} belongs to user {found.st_uid} or is open to others, mode {found.st_mode & 0o7777:04o}"
    return None


def unsuitable(path, uid):
    """Why private directories are not safe in `path`, None if they are.

    The group of a directory is trusted, since the user chose it; other users are not. They can replace entries of
    world-writable directories that they own or that have no sticky bit, and else make entries, whose owners are
    checked. Each directory and link on the way counts.
    """
    if not path.startswith("/"):
        return "not an absolute path"
    try:
        for directory, entry in _way(path):
            fault = _replaceable(directory, entry, uid)
            if fault:
                return fault
        os.stat(f"{path}/.")
    except OSError as error:
        return error.strerror
    return None if os.access(path, os.W_OK | os.X_OK) else "not writable"


def _way(path):
    """Each directory in which the kernel looks up `path`, through its links, and the entry there; the last has none."""
    directory, links = "", 0
    ahead = path.split("/")[::-1]
    while ahead:
        name = ahead.pop()
        if name == "..":
            directory = directory.rpartition("/")[0]
        elif name not in ("", "."):
            entry = f"{directory}/{name}"
            yield directory or "/", entry
            if not os.path.islink(entry):
                directory = entry
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(0, "Too many levels of symbolic links")
            target = os.readlink(entry)
            ahead += target.split("/")[::-1]
            if target.startswith("/"):
                directory = ""
    yield directory or "/", None


def _replaceable(directory, entry, uid):
    """Why another user can replace the `entry` of a directory, or any if it is None; None if no user can."""
    found = os.stat(directory)
    if not found.st_mode & 0o002:
        return None
    if not found.st_mode & 0o1000:
        return f"every user can replace what is in {directory}, as it has no sticky bit"
    if found.st_uid not in (0, uid) and not (found.st_uid == NOBODY and in_user_namespace()):
        return f"{directory} belongs to user {found.st_uid}, who can replace what is in it"
    if entry and os.lstat(entry).st_uid not in (0, uid):
        return f"{entry} belongs to another user, who can replace it"
    return None


def in_user_namespace():
    """Whether this process is in a user namespace, where numbers of users differ."""
    return (read("/proc/self/uid_map") or "").split() != ["0", "0", "4294967295"]

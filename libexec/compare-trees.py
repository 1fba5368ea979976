"""Compares two directories. The image's Python reads this file from its standard input.

Prints the first difference and exits with status 3; failures have other statuses. Bytecode is ignored, as running jobs
may write some.
"""

import filecmp
import os
import stat
import sys


def entries(tree):
    """Paths of all files and directories in `tree` except bytecode, by the path relative to `tree`."""
    found = {}
    for directory, directories, files in os.walk(tree):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in directories + files:
            path = os.path.join(directory, name)  # noqa: PTH118
            found[path[len(tree) + 1 :]] = path
    found.pop(".unpacked", None)
    return found


def same(one, other):
    """Whether two paths have the same type, permissions and content."""
    modes = os.lstat(one).st_mode, os.lstat(other).st_mode
    if modes[0] != modes[1]:
        return False
    if stat.S_ISLNK(modes[0]):
        return os.readlink(one) == os.readlink(other)
    return not stat.S_ISREG(modes[0]) or filecmp.cmp(one, other, shallow=False)


def main(one, other):
    """Compare two directories; return a description of the first difference, or None."""
    one, other = entries(one), entries(other)
    for path in sorted(set(one) | set(other)):
        if path not in one or path not in other:
            return f"only one of them has {path}"
        if not same(one[path], other[path]):
            return f"{path} differs"
    return None


if __name__ == "__main__":
    difference = main(*sys.argv[1:])
    if difference:
        print(difference)
        sys.exit(3)

"""Compares two directories for make-squashfs; the image's Python reads it from its standard input.

Ends with a line on the first difference and status 3, which no failure has. Bytecode does not count: jobs that run
meanwhile write some.
"""

import filecmp
import os
import stat
import sys


def entries(tree):
    """Everything below a directory but bytecode, by its path relative to that."""
    found = {}
    for directory, directories, files in os.walk(tree):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in directories + files:
            path = os.path.join(directory, name)  # noqa: PTH118
            found[path[len(tree) + 1 :]] = path
    found.pop(".unpacked", None)
    return found


def same(one, other):
    """Whether two paths are the same kind of thing, with the same permissions and content."""
    modes = os.lstat(one).st_mode, os.lstat(other).st_mode
    if modes[0] != modes[1]:
        return False
    if stat.S_ISLNK(modes[0]):
        return os.readlink(one) == os.readlink(other)
    return not stat.S_ISREG(modes[0]) or filecmp.cmp(one, other, shallow=False)


def main(one, other):
    """Compare two directories; return a sentence on the first difference, or None."""
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

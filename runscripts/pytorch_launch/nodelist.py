# SPDX-License-Identifier: BSD-3-Clause
"""Reads Slurm's node lists.

    >>> hosts("nid[0051-0053,0060],login1")
    ['nid0051', 'nid0052', 'nid0053', 'nid0060', 'login1']
    >>> hosts("rack[1-2]n[09-10]")
    ['rack1n09', 'rack1n10', 'rack2n09', 'rack2n10']

A list is names separated by commas; a name mixes text with brackets; a bracket holds numbers and ranges of numbers,
zero-padded to the width of a range's first number (slurm.conf(5), "NODE CONFIGURATION"). Order and repetitions stay as
they are written. With three brackets or more in a name Slurm counts the last bracket fastest, then the first, then the
second, ... Text after the last bracket, `gpu[1-2]-ib`, is accepted, as users write lists too. Empty names (`a,,b`),
spaces, `n[1-]` and `n[1-2`, which Slurm ignores, are errors, so that no job starts with an incomplete list.
"""

from pytorch_launch import MOST_DIGITS, LaunchError

DIGITS = "0123456789"
NAME_CHARACTERS = DIGITS + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"
# Slurm rejects a longer range (MAX_RANGE in its hostlist.c).
MOST_HOSTS = 65536


class NodeListError(LaunchError):
    """A node list outside the grammar."""

    def __init__(self, text, fault):
        super().__init__(f"node list {text!r} has {fault}", "expected something like nid[001-004],login1")


def hosts(text):
    """All hosts of a node list, in its order. Raises NodeListError, also if there are more than MOST_HOSTS."""
    found = []
    for name in _names(text):
        found += _expand(text, name)
        _check_count(text, len(found))
    return found


def _check_count(text, count):
    if count > MOST_HOSTS:
        raise NodeListError(text, f"more than {MOST_HOSTS} hosts")


def _expand(text, name):
    """The hosts of a name, as in `_names`: the last bracket counts fastest, then the first, the second, ..."""
    found = [name[0]]
    last = len(name) - 2
    for index in range(1, len(name), 2):
        numbers = _numbers(text, name[index])
        _check_count(text, len(found) * len(numbers))
        after = name[index + 1]
        if index == last:
            found = [before + number + after for before in found for number in numbers]
        else:
            found = [before + number + after for number in numbers for before in found]
    return found


def _names(text):
    """The names of a list, each as the texts before, in and after its brackets: n[1-2] is "n", "1-2" and ""."""
    if "".join([letter for letter in text if letter in "[]"]).replace("[]", ""):
        raise NodeListError(text, "an unmatched bracket")
    found = [[]]
    for index, part in enumerate(text.replace("]", "[").split("[")):
        if index % 2:
            found[-1].append(part)
            continue
        stray = part.replace(",", "").lstrip(NAME_CHARACTERS)
        if stray:
            raise NodeListError(text, f"a stray {stray[0]!r}")
        first, *others = part.split(",")
        found[-1].append(first)
        found += [[other] for other in others]
    if [""] in found:
        raise NodeListError(text, "an empty name")
    return found


def _numbers(text, bracket):
    """The numbers of a bracket as texts.

    The two ends of `07-12` may differ in width: Slurm and python-hostlist agree that `[01-3]` means 01, 02, 03, and
    `[1-03]` 1, 2, 3, padded like the lower end.
    """
    found = []
    for numbers in bracket.split(","):
        low, dash, high = numbers.partition("-")
        if not dash:
            high = low
        for end in (low, high):
            if not end or end.strip(DIGITS) or len(end) > MOST_DIGITS:
                raise NodeListError(text, f"{end[:MOST_DIGITS]!r} in place of a number")
        if int(low) > int(high):
            raise NodeListError(text, f"the reversed range {numbers}")
        _check_count(text, int(high) - int(low) + 1)
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found

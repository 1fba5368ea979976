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
    for texts, brackets in _names(text):
        count = 1
        for ranges in brackets:
            count *= sum([length for _, length, _ in ranges])
        if len(found) + count > MOST_HOSTS:
            raise NodeListError(text, f"more than {MOST_HOSTS} hosts")
        names = [texts[0]]
        for ranges, after in zip(brackets, texts[1:]):
            numbers = [str(low + more).zfill(width) + after for low, length, width in ranges for more in range(length)]
            if ranges is brackets[-1]:  # it counts fastest, then the first, the second, ...
                names = [name + number for name in names for number in numbers]
            else:
                names = [name + number for number in numbers for name in names]
        found += names
    return found


def _names(text):
    """The names of a list, each as the texts before, between and after its brackets, and the ranges of each bracket."""
    if "".join([letter for letter in text if letter in "[]"]).replace("[]", ""):
        raise NodeListError(text, "an unmatched bracket")
    names = [([], [])]
    for index, part in enumerate(text.replace("]", "[").split("[")):
        if index % 2:
            names[-1][1].append([_range(text, numbers) for numbers in part.split(",")])
            continue
        stray = part.replace(",", "").lstrip(NAME_CHARACTERS)
        if stray:
            raise NodeListError(text, f"a stray {stray[0]!r}")
        first, *others = part.split(",")
        names[-1][0].append(first)
        names += [([other], []) for other in others]
    if ([""], []) in names:
        raise NodeListError(text, "an empty name")
    return names


def _range(text, numbers):
    """A range as its lowest number, its length, and the width to which it is padded; a single number is one.

    The two ends may differ in width: Slurm and python-hostlist agree that `[01-3]` means 01, 02, 03, and `[1-03]` 1, 2,
    3, padded like the lower end.
    """
    low, dash, high = numbers.partition("-")
    high = high if dash else low
    for end in (low, high):
        if not end or end.strip(DIGITS) or len(end) > MOST_DIGITS:
            raise NodeListError(text, f"{end[:MOST_DIGITS]!r} in place of a number")
    if int(low) > int(high):
        raise NodeListError(text, f"the reversed range {numbers}")
    return int(low), int(high) - int(low) + 1, len(low)

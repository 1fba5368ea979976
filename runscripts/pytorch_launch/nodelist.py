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
    """A node list outside the grammar: `text` is the list, `position` the offset of the error in it, from 0."""

    def __init__(self, text, position, fault):
        fault = f"node list {text!r} has {fault} at character {position + 1}"
        super().__init__(fault, "expected something like nid[001-004],login1")
        self.text = text
        self.position = position


def hosts(text):
    """All hosts of a node list, in its order. Raises NodeListError, also if there are more than MOST_HOSTS."""
    found, total = [], 0
    for start, texts, brackets in _names(text):
        count = 1
        for bracket in brackets:
            count *= sum([length for _, length, _ in bracket])
        total += count
        if total > MOST_HOSTS:
            raise NodeListError(text, start, f"more than {MOST_HOSTS} hosts")
        names = [texts[0]]
        for bracket, after in zip(brackets, texts[1:]):
            numbers = [str(low + more).zfill(width) + after for low, length, width in bracket for more in range(length)]
            if bracket is brackets[-1]:  # it counts fastest, then the first, the second, ...
                names = [name + number for name in names for number in numbers]
            else:
                names = [name + number for number in numbers for name in names]
        found += names
    return found


def _names(text):
    """The names of a list, each as its offset, the texts before, between and after its brackets, and the brackets.

    A bracket is a list of ranges, a range its lowest number, its length, and the width to which it is padded.
    """
    names, end = [], -1
    while end < len(text):
        start = position = end + 1
        texts, brackets, opening = [], [], start
        while opening >= 0:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            opening = text.find("[", position, end)
            part = text[position : end if opening < 0 else opening]
            stray = part.lstrip(NAME_CHARACTERS)
            if stray:
                fault = "an unopened bracket" if stray[0] == "]" else f"a stray {stray[0]!r}"
                raise NodeListError(text, position + len(part) - len(stray), fault)
            texts.append(part)
            if opening >= 0:
                bracket, position = _bracket(text, opening)
                brackets.append(bracket)
        if end == start:
            raise NodeListError(text, start, "an empty name")
        names.append((start, texts, brackets))
    return names


def _bracket(text, opening):
    """The ranges of the bracket at `opening`, and the offset after the bracket; a single number is a range of one.

    The two ends may differ in width: Slurm and python-hostlist agree that `[01-3]` means 01, 02, 03, and `[1-03]` 1, 2,
    3, padded like the lower end.
    """
    closing = text.find("]", opening)
    if closing < 0:
        raise NodeListError(text, opening, "an unclosed bracket")
    ranges, position = [], opening + 1
    for numbers in text[position:closing].split(","):
        low, dash, high = numbers.partition("-")
        lowest = _number(text, position, low)
        highest = _number(text, position + len(low) + 1, high) if dash else lowest
        if lowest > highest:
            raise NodeListError(text, position, f"the reversed range {numbers}")
        ranges.append((lowest, highest - lowest + 1, len(low)))
        position += len(numbers) + 1
    return ranges, closing + 1


def _number(text, start, digits):
    stray = digits.lstrip(DIGITS)
    if not digits:
        raise NodeListError(text, start, "an empty range")
    if stray:
        raise NodeListError(text, start + len(digits) - len(stray), f"a {stray[0]!r} inside a bracket")
    if len(digits) > MOST_DIGITS:
        raise NodeListError(text, start, f"a number of {len(digits)} digits")
    return int(digits)

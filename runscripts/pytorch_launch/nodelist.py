# SPDX-License-Identifier: BSD-3-Clause
"""Reads Slurm's node lists.

    >>> first_host("nid[0051-0053,0060],login1")
    'nid0051'
    >>> list(hosts("rack[1-2]n[09-10]"))
    ['rack1n09', 'rack1n10', 'rack2n09', 'rack2n10']
    >>> first_and_index("nid[0051-0053,0060],login1", "nid0060")
    ('nid0051', 3)

A list is names separated by commas; a name mixes text with brackets; a bracket holds numbers and ranges of numbers,
zero-padded to the width of a range's first number (slurm.conf(5), "NODE CONFIGURATION"). Order and repetitions stay as
they are written. With three brackets or more in a name Slurm counts the last bracket fastest, then the first, then the
second, ... Text after the last bracket, `gpu[1-2]-ib`, is accepted, as users write lists too. Empty names (`a,,b`),
spaces, `n[1-]` and `n[1-2`, which Slurm ignores, are errors, so that no job starts with an incomplete list.
"""

from pytorch_launch import MOST_DIGITS, LaunchError

DIGITS = "0123456789"
NAME_CHARACTERS = DIGITS + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"
# Slurm rejects a longer range (MAX_RANGE in its hostlist.c); nothing is expanded beyond that.
MOST_HOSTS = 65536


class NodeListError(LaunchError):
    """A node list outside the grammar: `text` is the list, `position` the offset of the error in it, from 0."""

    def __init__(self, text, position, fault):
        fault = f"node list {text!r} has {fault} at character {position + 1}"
        super().__init__(fault, "expected something like nid[001-004],login1")
        self.text = text
        self.position = position


def first_host(text):
    """The first host of a node list, in its order, without expanding it. Raises NodeListError."""
    return first_and_index(text, "")[0]


def hosts(text):
    """All hosts of a node list, in the order of the list, as an iterator.

    Raises NodeListError before the first of them, also if there are more than MOST_HOSTS.
    """
    names, total = _names(text), 0
    for start, _, brackets in names:
        total += _count(brackets)
        if total > MOST_HOSTS:
            raise NodeListError(text, start, f"more than {MOST_HOSTS} hosts")
    return (host for _, texts, brackets in names for host in _expanded(texts, brackets))


def first_and_index(text, host):
    """The first host of a node list, and the first position of `host` in it, from 0, or None if it is not in it.

    It is computed from the ranges, without expanding them. Raises NodeListError.
    """
    names, before = _names(text), 0
    _, texts, brackets = names[0]
    first = _host(texts, [f"{low:0{width}}" for (low, _, width), *_ in brackets])
    for _, texts, brackets in names:
        positions = []
        for offsets in _offsets(host, texts, brackets):
            position = 0
            for turn in _turns(brackets):
                position = position * _count([brackets[turn]]) + offsets[turn]
            positions.append(position)
        if positions:
            return first, before + min(positions)
        before += _count(brackets)
    return first, None


def _turns(brackets):
    """The numbers of the brackets, from the one that counts slowest to the fastest, in Slurm's order."""
    return [*range(len(brackets) - 2, -1, -1), *range(len(brackets))[-1:]]


def _count(brackets):
    """The number of hosts that the brackets of a name stand for."""
    total = 1
    for bracket in brackets:
        total *= sum([count for _, count, _ in bracket])
    return total


def _host(texts, numbers):
    return texts[0] + "".join([number + text for number, text in zip(numbers, texts[1:])])


def _expanded(texts, brackets):
    from itertools import product  # ranks do not need it

    written = [[f"{low + i:0{width}}" for low, count, width in bracket for i in range(count)] for bracket in brackets]
    turns = _turns(brackets)
    for numbers in product(*[written[turn] for turn in turns]):
        yield _host(texts, [number for _, number in sorted(zip(turns, numbers))])


def _offsets(host, texts, brackets):
    """Every way to read `host` as a position in each bracket: with `n[1-20][1-20]`, n111 is 1 and 11, or 11 and 1."""
    rest = host[len(texts[0]) :]
    if not brackets or not host.startswith(texts[0]):
        return [()] if host == texts[0] else []
    ways = []
    for end in range(1, min(len(rest), MOST_DIGITS) + 1):
        before = 0
        for low, count, width in brackets[0] if rest[:end].isdecimal() else ():
            offset = int(rest[:end]) - low
            if 0 <= offset < count and f"{low + offset:0{width}}" == rest[:end]:
                ways += [(before + offset, *others) for others in _offsets(rest[end:], texts[1:], brackets[1:])]
                break
            before += count
    return ways


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

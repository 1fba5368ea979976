# SPDX-License-Identifier: BSD-3-Clause
"""Reads Slurm's node lists.

    >>> first_host("nid[0051-0053,0060],login1")
    'nid0051'
    >>> list(hosts("rack[1-2]n[09-10]"))
    ['rack1n09', 'rack1n10', 'rack2n09', 'rack2n10']
    >>> node_index("nid[0051-0053,0060],login1", "nid0060")
    3
    >>> first_host("nid[0051-")
    Traceback (most recent call last):
    NodeListError: node list 'nid[0051-' has an unclosed bracket at character 4 ...

A list is names separated by commas; a name mixes text with brackets; a bracket holds numbers and
ranges of numbers, zero-padded to the width of a range's first number (slurm.conf(5), "NODE
CONFIGURATION"). Order and repetitions stay as they are written.

`scontrol show hostnames` and python-hostlist expand lists differently in two cases:

- With three brackets or more in a name Slurm counts the last bracket fastest, then the first, then
  the second, ...; python-hostlist counts them from the last to the first. This module uses Slurm's order.
- Slurm rejects text after the last bracket, `gpu[1-2]-ib`, and writes such names one by one;
  python-hostlist accepts it, and so does this module, as users write lists too.

Both ignore empty names (`a,,b`), and Slurm also ignores spaces, `n[1-]` and `n[1-2`. Here these
are errors, so that no job starts with an incomplete list.
"""

from pytorch_launch import MOST_DIGITS, LaunchError

DIGITS = "0123456789"
NAME_CHARACTERS = DIGITS + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"
# Slurm rejects a longer range (MAX_RANGE in its hostlist.c); nothing is expanded beyond that.
MOST_HOSTS = 65536


class NodeListError(LaunchError):
    """A node list outside the grammar.

    `text` is the list, `position` the offset of the error in it, counted from 0.
    """

    def __init__(self, text, position, fault):
        fault = f"node list {text!r} has {fault} at character {position + 1}"
        super().__init__(fault, "expected something like nid[001-004],login1")
        self.text = text
        self.position = position


def first_host(text):
    """The first host of a node list, in its order, without expanding it. Raises NodeListError."""
    return _names(text)[0].first()


def hosts(text):
    """All hosts of a node list, in the order of the list, as an iterator.

    Raises NodeListError before the first of them, also if there are more than MOST_HOSTS.
    """
    names = _names(text)
    total = 0
    for name in names:
        total += name.count()
        if total > MOST_HOSTS:
            raise NodeListError(text, name.start, f"more than {MOST_HOSTS} hosts")
    return (host for name in names for host in name.hosts())


def node_index(text, host):
    """The position of `host` in a node list, as `first_and_index` has it."""
    return first_and_index(text, host)[1]


def first_and_index(text, host):
    """The first host of a node list, and the position of `host` in it, from 0, or None if it is not in it.

    The first position if there are several. It is computed from the ranges, without expanding them.
    Raises NodeListError.
    """
    names = _names(text)
    before = 0
    for name in names:
        index = name.index(host)
        if index is not None:
            return names[0].first(), before + index
        before += name.count()
    return names[0].first(), None


class _Name:
    """One name of a list: `texts[0]`, then each of the `brackets` followed by the next of `texts`.

    `start` is the name's offset in the list. A bracket is a list of ranges, a range a tuple of its
    lowest number, its length, and the width to which the numbers are padded.
    """

    def __init__(self, start, texts, brackets):
        self.start = start
        self.texts = texts
        self.brackets = brackets
        last = len(brackets) - 1
        # the numbers of the brackets, from the one that counts slowest to the fastest, in Slurm's order
        self.turns = [*range(last - 1, -1, -1), last] if brackets else []

    def count(self):
        product = 1
        for bracket in self.brackets:
            product *= _size(bracket)
        return product

    def first(self):
        return self._host([f"{low:0{width}}" for (low, _, width), *_ in self.brackets])

    def hosts(self):
        from itertools import product  # ranks do not need it

        brackets = [[f"{low + i:0{width}}" for low, count, width in one for i in range(count)] for one in self.brackets]
        for numbers in product(*[brackets[turn] for turn in self.turns]):
            yield self._host([number for _, number in sorted(zip(self.turns, numbers))])

    def index(self, host):
        """The position of `host` among the hosts, None if it is not one of them."""
        positions = []
        for offsets in self._offsets(host, 0):
            position = 0
            for turn in self.turns:
                position = position * _size(self.brackets[turn]) + offsets[turn]
            positions.append(position)
        return min(positions, default=None)

    def _host(self, numbers):
        return self.texts[0] + "".join([number + text for number, text in zip(numbers, self.texts[1:])])

    def _offsets(self, host, bracket):
        """Every way to read `host` from `texts[bracket]` on, as positions in the brackets from there on.

        There may be several: with `n[1-20][1-20]`, n111 is 1 and 11 or 11 and 1.
        """
        text = self.texts[bracket]
        rest = host[len(text) :]
        if not host.startswith(text) or bracket == len(self.brackets):
            return [()] if host == text else []
        ways = []
        for end in range(1, min(len(rest), MOST_DIGITS) + 1):
            offset = _offset(self.brackets[bracket], rest[:end])
            if offset is not None:
                ways += [(offset, *others) for others in self._offsets(rest[end:], bracket + 1)]
        return ways


def _size(bracket):
    return sum([count for _, count, _ in bracket])


def _offset(bracket, digits):
    """The position of the number written as `digits` in a bracket, None if it is not in it."""
    if not digits.isdecimal():
        return None
    number = int(digits)
    before = 0
    for low, count, width in bracket:
        if low <= number < low + count and f"{number:0{width}}" == digits:
            return before + number - low
        before += count
    return None


def _names(text):
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
        names.append(_Name(start, texts, brackets))
    return names


def _bracket(text, opening):
    """The ranges of the bracket at `opening`, and the offset after the bracket; a single number is a range of one.

    The two ends may differ in width: `[8-12]` is usual, and Slurm and python-hostlist agree that
    `[01-3]` means 01, 02, 03 and `[1-03]` means 1, 2, 3, padded like the lower end.
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
    if not digits:
        raise NodeListError(text, start, "an empty range")
    stray = digits.lstrip(DIGITS)
    if stray:
        raise NodeListError(text, start + len(digits) - len(stray), f"a {stray[0]!r} inside a bracket")
    if len(digits) > MOST_DIGITS:
        raise NodeListError(text, start, f"a number of {len(digits)} digits")
    return int(digits)

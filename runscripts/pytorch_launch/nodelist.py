"""The grammar of Slurm's node lists, as far as the first host needs it; called by `world`.

    >>> first_host("nid[0051-0053,0060],login1")
    'nid0051'
    >>> first_host("r[1-2]n[01-04]-ib")
    'r1n01-ib'
    >>> first_host("nid[0051-")
    Traceback (most recent call last):
    NodeListError: node list 'nid[0051-' has a bracket that is never closed at character 4 ...

A list is names separated by commas; a name mixes text with brackets; a bracket holds numbers and
ranges of numbers, zero-padded to the width of a range's first number (slurm.conf(5), NodeName).
"""

from pytorch_launch import LaunchError

DIGITS = "0123456789"
NAME_CHARACTERS = DIGITS + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-"


class NodeListError(LaunchError):
    """A node list outside the grammar.

    `text` is the whole list, `position` the offset of the fault in it, counted from 0, `fault`
    what is there.
    """

    def __init__(self, text, position, fault):
        super().__init__(
            f"node list {text!r} has {fault} at character {position + 1}: expected something like nid[001-004],login1"
        )
        self.text = text
        self.position = position
        self.fault = fault


def first_host(text):
    """The first host of a node list, in the order of the list.

    The rest is not expanded, but it is read to the end. Raises NodeListError.
    """
    host, position = _name(text, 0)
    while position < len(text):
        _, position = _name(text, position + 1)
    return host


def _name(text, start):
    """The first host of the name at `start`, and the offset of the comma or the end after it."""
    host = ""
    position = start
    while position < len(text) and text[position] != ",":
        character = text[position]
        if character == "[":
            number, position = _bracket(text, position)
            host += number
        elif character in NAME_CHARACTERS:
            host += character
            position += 1
        elif character == "]":
            raise NodeListError(text, position, "a bracket that was never opened")
        else:
            raise NodeListError(text, position, f"a stray {character!r}")
    if not host:
        raise NodeListError(text, start, "an empty name")
    return host, position


def _bracket(text, opening):
    """The first number of the bracket at `opening`, and the offset after the bracket."""
    closing = text.find("]", opening)
    if closing < 0:
        raise NodeListError(text, opening, "a bracket that is never closed")
    ranges = text[opening + 1 : closing].split(",")
    position = opening + 1
    for numbers in ranges:
        _check_range(text, position, numbers)
        position += len(numbers) + 1
    return ranges[0].partition("-")[0], closing + 1


def _check_range(text, start, numbers):
    """Raise NodeListError unless `numbers`, found at `start`, is a number or a range of them.

    The two ends may differ in width: `[8-12]` is usual, and Slurm and python-hostlist agree that
    `[01-3]` means 01, 02, 03, padded like the lower end, the only one the first host needs.
    """
    low, dash, high = numbers.partition("-")
    position = start
    for number in (low, high) if dash else (low,):
        if not number:
            raise NodeListError(text, position, "an empty range")
        for character in number:
            if character not in DIGITS:
                raise NodeListError(text, position, f"a {character!r} inside a bracket")
            position += 1
        position += 1
    if dash and int(low) > int(high):
        raise NodeListError(text, start, f"the backward range {numbers}")

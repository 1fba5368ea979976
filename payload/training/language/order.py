"""The order of the windows of a text: computed, not stored, and the same for any number of ranks."""

from __future__ import annotations

import hashlib

ROUNDS = 4  # of the Feistel network; Luby and Rackoff 1988: four make a permutation that looks random


def permute(place: int, count: int, key: bytes) -> int:
    """Return the number at ``place`` in a shuffled order of ``range(count)``, which ``key`` decides.

    A Feistel network shuffles the numbers of an even number of bits. Numbers beyond ``count`` are shuffled
    again until one is below it (https://en.wikipedia.org/wiki/Format-preserving_encryption, "cycle walking").
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for number in range(ROUNDS):
            text = b"%d %d" % (number, right)
            digest = hashlib.blake2b(text, digest_size=8, key=key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        place = left << half | right
        if place < count:
            return place


def window_at(position: int, count: int, seed: int) -> int:
    """Return the window, of ``count``, that a training takes after ``position`` others.

    Every pass over the text takes each window once, in an order of its own.
    """
    number, place = divmod(position, count)
    return permute(place, count, b"%d %d" % (seed, number))


def own_share(position: int, batch_size: int, rank: int, size: int) -> list[int | None]:
    """Return the positions that this rank takes of the global batch at ``position``.

    All ranks have the same number: where a batch cannot be divided evenly, the last of some ranks is None.
    """
    most = -(-batch_size // size)
    places = range(rank, most * size, size)
    return [position + place if place < batch_size else None for place in places]

"""The checksum of an open file."""

import hashlib
import os

CHUNK = 4 << 20


def checksum(file, await_more=None):
    """SHA-256 of a file, a descriptor, in hexadecimal. Raises OSError.

    While the file is written, `await_more` waits until it has more bytes than its argument, or has ended.
    """
    digest, place = hashlib.sha256(), 0
    while True:
        if await_more:
            await_more(place)
        chunk = os.pread(file, CHUNK, place)
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)
        place += len(chunk)

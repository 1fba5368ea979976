"""The checksum of an open file."""

import hashlib
import os

CHUNK = 4 << 20


def checksum(file):
    """SHA-256 of a file, a descriptor, in hexadecimal. Raises OSError."""
    digest, place = hashlib.sha256(), 0
    while True:
        chunk = os.pread(file, CHUNK, place)
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)
        place += len(chunk)

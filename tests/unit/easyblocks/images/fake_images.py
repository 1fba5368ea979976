"""Images without a system in them."""

import struct

DIGEST = "sha256:" + "5d" * 32


def sif(data, *, size=None):
    """A SIF header and data; the header has the size of the data, or `size`."""
    header = b"#!/usr/bin/env run-singularity\n\0" + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(64)
    return header + struct.pack("<qq", 128, len(data) if size is None else size) + data

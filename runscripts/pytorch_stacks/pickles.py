# SPDX-License-Identifier: BSD-3-Clause
"""Reads a dump of PyTorch's flight recorder, without running anything that is in it.

The recorder writes numbers, texts, None, lists, tuples and dicts as a pickle (torch/csrc/distributed/c10d,
FlightRecorderDetail.hpp, `dump`), or the same as JSON (`dump_json`). A pickle that names a function is rejected.
"""

import json
import pickle  # noqa: S403  (the subclass below loads no functions)
from pathlib import Path


class DumpError(Exception):
    """The file is not a dump; the message has the reason."""


class Values(pickle.Unpickler):
    """Reads a pickle of plain values."""

    def find_class(self, module, name):
        """Reject every function and class."""
        raise DumpError(f"it would run {module}.{name}: not written by PyTorch")

    def persistent_load(self, _):
        """Reject references to objects outside of the file."""
        raise DumpError("it refers to another object: not written by PyTorch")


def read_dump(path):
    """The content of a dump, a dict with `entries`, `pg_config` and `pg_status`. Raises DumpError."""
    try:
        with Path(path).open("rb") as file:
            is_pickle = file.read(1) == b"\x80"
            file.seek(0)
            dump = Values(file).load() if is_pickle else json.loads(file.read().decode())
    except DumpError:
        raise
    except Exception as error:  # pickle raises what it meets in a damaged file
        raise DumpError(f"{type(error).__name__}: {error}. The rank may have ended while it wrote") from error
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise DumpError("not a dump of PyTorch's flight recorder")
    return dump

# SPDX-License-Identifier: BSD-3-Clause
"""Settings and directory of PyTorch's flight recorder, which NCCL and RCCL have.

The size is PyTorch's recommendation ("Flight Recorder for Debugging Stuck Jobs"). Without a file all jobs of a user
write to the same.
"""

import os

from pytorch_launch import Record, exists
from pytorch_launch.private import make_private, not_private

BUFFER_SIZE = "2000"


#: The names of the recorder's buffer and file, and those of torch before 2.8 (pull request 152563), of which later
#: ones warn on every rank.
SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
OLD_RELEASES = ("2.0.", "2.1.", "2.2.", "2.3.", "2.4.", "2.5.", "2.6.", "2.7.")


class Dumps(Record):
    """The directory of dumps, None if there is none to make; and the variables to set, name to value."""

    fields = "directory variables"


def choose_dumps(env, name):
    """The Dumps of ranks with GPUs, with `name`, that of their launch. Nothing is written.

    What is exported under either name takes precedence, but the file of a launch whose rank submitted this job.
    """
    cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or '~'}/.cache"
    directory = f"{cache}/pytorch-dumps"
    version = 0
    if env.get("EBVERSIONPYTORCH", "").startswith(OLD_RELEASES):
        version = 1
    variables = {}
    if not any(env.get(size) for size in SIZES):
        variables[SIZES[version]] = BUFFER_SIZE
    if not env.get(ON_TIMEOUT):
        variables[ON_TIMEOUT] = "1"
    exported = [file for file in map(env.get, FILES) if file and not file.startswith(f"{directory}/")]
    if exported or not cache.startswith("/"):
        return Dumps(None, variables)
    variables[FILES[version]] = f"{directory}/{name}-rank_"
    return Dumps(directory, variables)


def make_dumps(dumps):
    """Make the directory; return the variables that name it if it cannot be made or is not private."""
    if dumps.directory is None:
        return ()
    cache = os.path.dirname(dumps.directory)
    missing = [path for path in (cache, dumps.directory) if not exists(path)]
    # a directory that exists is not made again: the home directory may be read-only
    if not make_private(*missing) and not not_private(dumps.directory):
        return ()
    return FILES

# SPDX-License-Identifier: BSD-3-Clause
"""Settings and directory of PyTorch's flight recorder, which NCCL and RCCL have.

The size is PyTorch's recommendation ("Flight Recorder for Debugging Stuck Jobs"). Without a file all jobs of a user
write to the same.
"""

from collections import namedtuple

from pytorch_launch import exists
from pytorch_launch.private import make_private, not_private

BUFFER_SIZE = "2000"


class Names(namedtuple("Names", "size file on_timeout")):
    """The names of the recorder's settings."""

    __slots__ = ()


CURRENT = Names("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
#: Those of torch before 2.8 (pull request 152563); later versions warn of them on every rank.
OLD = Names("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT")
FIRST_RELEASE = [2, 8]
FILES = (CURRENT.file, OLD.file)


class Dumps(namedtuple("Dumps", "directory variables")):
    """The directory of dumps, None if there is none to make; and the variables to set, name to value."""

    __slots__ = ()


def choose_dumps(env, name):
    """The Dumps of ranks with GPUs, with `name`, that of their launch. Nothing is written.

    What is exported under either name takes precedence, but the file of a launch whose rank submitted this job.
    """
    cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or '~'}/.cache"
    directory = f"{cache}/pytorch-dumps"
    names = _names(env)
    variables = {}
    if not env.get(CURRENT.size) and not env.get(OLD.size):
        variables[names.size] = BUFFER_SIZE
    if not env.get(names.on_timeout):
        variables[names.on_timeout] = "1"
    exported = [env[name] for name in FILES if env.get(name)]
    if not cache.startswith("/") or any(not file.startswith(f"{directory}/") for file in exported):
        return Dumps(None, variables)
    variables[names.file] = f"{directory}/{name}-rank_"
    return Dumps(directory, variables)


def _names(env):
    """The names that the module's torch reads."""
    release = env.get("EBVERSIONPYTORCH", "").split(".")[:2]
    if len(release) == 2 and all(map(str.isdecimal, release)) and [int(part) for part in release] < FIRST_RELEASE:
        return OLD
    return CURRENT


def make_dumps(dumps):
    """Make the directory; return the Dumps, without the file if the directory cannot be made or is not private."""
    if dumps.directory is None:
        return dumps
    cache = dumps.directory.rpartition("/")[0]
    fault = None
    if not exists(cache):
        fault = make_private(cache)
    if fault is None and exists(dumps.directory):  # without a write: the home directory may be read-only
        fault = not_private(dumps.directory)
    elif fault is None:
        fault = make_private(dumps.directory)
    if fault is None:
        return dumps
    return Dumps(None, {name: value for name, value in dumps.variables.items() if name not in FILES})

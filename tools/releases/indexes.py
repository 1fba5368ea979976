"""The package indexes of pip's configuration, for uv, which does not read it; tools/new-release uses it."""

import ast
import functools
import subprocess

from testbed.layout import TestbedError

#: uv's options for pip's settings.
OPTIONS = {"index-url": "--default-index", "extra-index-url": "--index", "find-links": "--find-links"}
#: uv's variables that belong to a loaded PyTorch module or to other projects.
FOREIGN = ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE", "UV_REQUIREMENTS")


@functools.lru_cache
def pip_indexes(tools):
    """The package indexes and directories of pip's configuration, as options of uv."""
    listing = subprocess.run([tools / "pip", "config", "list"], capture_output=True, text=True, check=False)
    if listing.returncode:
        raise TestbedError(f"`pip config list` fails: {listing.stderr.strip()}")
    settings = {}
    for line in sorted(listing.stdout.splitlines(), key=lambda line: line.startswith(":env:")):  # last wins
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = ast.literal_eval(value).split()
    options = []
    if settings.get("no-index", ["0"])[0] in ("1", "true", "on", "yes"):
        options.append("--no-index")
    for name, option in OPTIONS.items():
        for word in settings.get(name, []):
            options += [option, word]
    return options

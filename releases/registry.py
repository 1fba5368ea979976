"""Digests of images in a registry, read with skopeo."""

import hashlib
import subprocess

from releases.locks import NotReachedError
from testbed.layout import TestbedError
from testbed.packages import find_command


def pinned(image, change):
    """The new release's image with its digest: ``docker://<repository>:<tag>@sha256:<digest>``.

    Raises
    ------
    NotReachedError
        If the registry does not answer, or has no image of this tag yet.
    """
    reference = change.apply(image.partition("@")[0])
    skopeo = find_command("skopeo")
    if not skopeo:
        raise TestbedError("skopeo not found on PATH: it reads digests. `python3 testbed optional` installs it.")
    result = subprocess.run([skopeo, "inspect", "--raw", reference], capture_output=True, check=False)
    if result.returncode:
        raise NotReachedError(f"{reference}: {reason(result.stderr.decode(errors='replace'))}")
    return f"{reference}@sha256:{hashlib.sha256(result.stdout).hexdigest()}"


def reason(message):
    """The last part of skopeo's message."""
    return message.strip().strip('"').rpartition(": ")[2] or "no message"

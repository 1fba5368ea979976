"""Downloads missing MNIST files into a directory, once for all ranks."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import sys
import time
import urllib.request
from pathlib import Path

from training import TrainingError
from training.data.mnist import CHECKSUMS, MIRRORS, NAMES, find_idx_files
from training.files import write_file

TIME_LIMIT = 300  # seconds in which a mirror must send a file; the largest has 9.9 MB


def download_dataset(directory: Path) -> None:
    """Download the files that ``directory`` lacks, each complete or not at all; other processes wait meanwhile.

    Raises TrainingError if no mirror has a file, or if it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if len(find_idx_files(directory)) == len(NAMES):
            return
        path = directory / ".download.lock"
        with path.open("a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)  # POSIX: NFS shares it between nodes, and it ends with its process
            try:
                for name in NAMES:
                    if name not in find_idx_files(directory):
                        write_file(directory / f"{name}.gz", fetch(f"{name}.gz", CHECKSUMS[name]))
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise TrainingError(
            f"{directory}: cannot be written ({error.strerror or error}). Choose a writable directory "
            "with free space, on a file system with locks"
        ) from None


def fetch(name: str, checksums: tuple[str, ...]) -> bytes:
    """Return a file from the first mirror that has it with one of the SHA-256 ``checksums``."""
    faults = []
    for url in (f"{mirror}{name}" for mirror in MIRRORS):
        print(f"downloading {url}", file=sys.stderr)
        content, deadline = b"", time.monotonic() + TIME_LIMIT
        try:
            with urllib.request.urlopen(url, timeout=TIME_LIMIT) as response:  # noqa: S310 (https)
                while part := response.read1(2**20):  # returns as soon as any bytes arrive
                    content += part
                    if time.monotonic() > deadline or len(content) > 2**24:
                        raise OSError(f"{len(content)} bytes, and not complete after {TIME_LIMIT} s")
            if hashlib.sha256(content).hexdigest() in checksums:
                return content
            raise OSError(f"{len(content)} bytes with the wrong SHA-256")
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{url}: {error}")
    raise TrainingError(
        f"{name} cannot be downloaded ({'; '.join(faults)}). If this network has a proxy, set https_proxy; "
        "else copy the four MNIST files here and name their directory with --data"
    )

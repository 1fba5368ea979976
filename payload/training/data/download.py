"""Downloads the MNIST files that a directory lacks, once for all ranks."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training import TrainingError
from training.data.mnist import CHECKSUMS, MIRRORS, NAMES, find_idx_files
from training.files import write_file

MOST_BYTES = 2**24  # of one file to download; the largest has 9.9 MB
SILENCE_SECONDS = 60  # of a mirror, before it is given up
LEAST_SPEED = 1000  # bytes per second of a mirror, over as long
REPORT_SECONDS = 10  # between two lines on a download


def download_dataset(directory: Path) -> None:
    """Fetch the files that ``directory`` lacks, once, whichever ranks on whichever nodes ask.

    The first to lock the directory fetches, the others wait until it is done. A file appears
    whole, with the right checksum, or not at all. Proxies are those of the environment. Raises
    TrainingError where no mirror has a file, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        while len(find_idx_files(directory)) < len(NAMES):
            with lock(directory) as locked:
                if locked:
                    for name in NAMES:
                        if name not in find_idx_files(directory):
                            fetch(name, directory)
    except OSError as error:
        raise TrainingError(
            f"{directory}: MNIST cannot be put there ({error.strerror or error}); name a directory "
            "with room that you may write to, on a file system with locks"
        ) from None


@contextmanager
def lock(directory: Path) -> Iterator[bool]:
    """Wait for the lock on ``directory`` and hold it; False where another has done the work since.

    The kernel takes it back from a process that dies. POSIX locks, as NFS passes them on to all
    nodes. Raises OSError where the file system has none.
    """
    path = directory / ".download.lock"
    with path.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process downloads MNIST to {directory}: waiting for it", file=sys.stderr)
            fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            # The one before deleted the file, and a third may have made a new one.
            mine = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            mine = False
        try:
            yield mine
        finally:
            if mine:
                path.unlink()


def fetch(name: str, directory: Path) -> None:
    """Download ``NAME.gz`` from the first mirror that has it, and put it into ``directory``."""
    faults = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        print(f"downloading {url} to {directory}", file=sys.stderr)
        try:
            with urllib.request.urlopen(url, timeout=SILENCE_SECONDS) as response:  # noqa: S310 (https, above)
                content = read_steadily(response, url)
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{url}: {error}")
            continue
        checksum = hashlib.sha256(content).hexdigest()
        if checksum in CHECKSUMS[name]:
            write_file(directory / f"{name}.gz", content)
            return
        faults.append(f"{url}: {len(content)} bytes with the wrong SHA-256, {checksum}")
    raise TrainingError(
        f"{name}.gz cannot be downloaded ({'; '.join(faults)}); set https_proxy where a proxy leads "
        "out, or copy the four MNIST files here and name their directory with --data"
    )


def read_steadily(
    response: http.client.HTTPResponse, url: str, *, seconds: float | None = None, most_bytes: int = MOST_BYTES
) -> bytes:
    """Return the content of a response, and report progress; OSError if it is slower than ``LEAST_SPEED``.

    The speed is that over each ``seconds``, by default ``SILENCE_SECONDS``.
    """
    seconds = SILENCE_SECONDS if seconds is None else seconds
    content = bytearray()
    since = reported = time.monotonic()
    counted = 0  # bytes until then
    while len(content) < most_bytes:
        part = response.read1(min(2**16, most_bytes - len(content)))  # what is there, however little
        if not part:
            break
        content += part
        now = time.monotonic()
        if now - since >= seconds:
            if len(content) - counted < LEAST_SPEED * (now - since):
                raise OSError(f"less than {LEAST_SPEED} bytes/s over {seconds:g} s")
            since, counted = now, len(content)
        if now - reported >= REPORT_SECONDS:
            print(f"downloading {url}: {len(content) / 1e6:.1f} MB so far", file=sys.stderr)
            reported = now
    return bytes(content)

"""Downloads missing MNIST files into a directory, once for all ranks."""

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

MOST_BYTES = 2**24  # limit for one file; the largest has 9.9 MB
STALL_SECONDS = 60  # a mirror that sends nothing, or too little, for this long is skipped
LEAST_SPEED = 1000  # bytes per second over STALL_SECONDS
REPORT_SECONDS = 10  # between two progress lines


def download_dataset(directory: Path) -> None:
    """Download the files that ``directory`` lacks, once for all ranks on all nodes.

    The first process to lock the directory downloads; the others wait for it. A file appears
    complete, with the expected checksum, or not at all. Proxies are read from the environment. Raises
    TrainingError if no mirror has a file, or if it cannot be written.
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
            f"{directory}: cannot be written ({error.strerror or error}). Choose a writable directory "
            "with free space, on a file system with locks"
        ) from None


@contextmanager
def lock(directory: Path) -> Iterator[bool]:
    """Wait for the lock on ``directory`` and hold it; False if another process held and deleted it meanwhile.

    The kernel releases the lock of a process that dies. It is a POSIX lock, which NFS shares between
    nodes. Raises OSError if the file system has none.
    """
    path = directory / ".download.lock"
    with path.open("a") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is downloading MNIST to {directory}: waiting for it", file=sys.stderr)
            fcntl.lockf(file, fcntl.LOCK_EX)
        try:
            # The previous holder deleted the file, and a third process may have made a new one.
            is_current = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:
            is_current = False
        try:
            yield is_current
        finally:
            if is_current:
                path.unlink()


def fetch(name: str, directory: Path) -> None:
    """Download ``NAME.gz`` to ``directory``, from the first mirror that has it."""
    faults = []
    for mirror in MIRRORS:
        url = f"{mirror}{name}.gz"
        print(f"downloading {url} to {directory}", file=sys.stderr)
        try:
            with urllib.request.urlopen(url, timeout=STALL_SECONDS) as response:  # noqa: S310 (https, above)
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
        f"{name}.gz cannot be downloaded ({'; '.join(faults)}). If this network has a proxy, set https_proxy; "
        "else copy the four MNIST files here and name their directory with --data"
    )


def read_steadily(
    response: http.client.HTTPResponse, url: str, *, seconds: float | None = None, most_bytes: int = MOST_BYTES
) -> bytes:
    """Return the content of a response, and report progress; OSError if it is slower than ``LEAST_SPEED``.

    The speed is measured over every ``seconds``, by default ``STALL_SECONDS``.
    """
    seconds = STALL_SECONDS if seconds is None else seconds
    content = bytearray()
    since = reported = time.monotonic()
    counted = 0  # bytes received by then
    while len(content) < most_bytes:
        part = response.read1(min(2**16, most_bytes - len(content)))  # returns as soon as any bytes arrive
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

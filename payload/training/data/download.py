# SPDX-License-Identifier: BSD-3-Clause
"""The MNIST files: their names, mirrors and checksums, and their download, once for all ranks."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import sys
import urllib.request
from pathlib import Path

from training import TrainingError
from training.files import write_file

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# NAME.gz is downloaded from here. Mirrors and SHA-256 checksums are those of easyconfigs/m/MNIST.
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
CHECKSUMS = {
    TRAIN_IMAGES: (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "d0810e1baa65ff3f4ba49bcbc71bd4708cee30932258b9a0a57428408f39c5f9",
    ),
    TRAIN_LABELS: ("3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",),
    TEST_IMAGES: ("8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",),
    TEST_LABELS: ("f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",),
}
SILENT_SECONDS, MOST_BYTES = 60, 2**24  # limits for a mirror; the largest file has 9.9 MB


def find_idx_files(directory: Path) -> dict[str, Path]:
    """Map the names of the files that exist to their paths, which are all in one folder."""
    found = {}
    for folder in (directory, directory / "MNIST" / "raw"):
        candidates = {name: (folder / name, folder / f"{name}.gz") for name in NAMES}
        found = {name: path for name in NAMES for path in candidates[name] if path.is_file()}
        if found:
            break
    return found


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
        try:
            with urllib.request.urlopen(url, timeout=SILENT_SECONDS) as response:  # noqa: S310 (https)
                content = response.read(MOST_BYTES)
            if hashlib.sha256(content).hexdigest() in checksums:
                return content
            raise OSError(f"{len(content)} bytes with the wrong SHA-256")
        except (OSError, http.client.HTTPException) as error:
            faults.append(f"{url}: {error}")
    raise TrainingError(
        f"{name} cannot be downloaded ({'; '.join(faults)}). If this network has a proxy, set https_proxy; "
        "else copy the four MNIST files here and name their directory with --data"
    )

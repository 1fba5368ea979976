"""The images that the payload trains on, how they are fetched once, and the order in which the ranks take them.

Source of the file format and of the four names: http://yann.lecun.com/exdb/mnist
"""

from __future__ import annotations

import ctypes
import fcntl
import gzip
import hashlib
import http.client
import io
import math
import os
import sys
import time
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from training import TrainingError
from training.files import read_file, write_file

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

# Where the files are fetched from, as NAME.gz, and the SHA-256 of each: those of easyconfigs/m/MNIST.
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
MOST_BYTES = 2**24  # of one file to download; the largest has 9.9 MB
MOST_IDX_BYTES = 2**30  # of one file to read: a million images
SILENCE_SECONDS = 60  # of a mirror, before it is given up
LEAST_SPEED = 1000  # bytes per second of a mirror, over as long
REPORT_SECONDS = 10  # between two lines on a download

# Mean and standard deviation of the pixels of MNIST's training images, on a scale of 0 to 1.
PIXEL_MEAN = 0.1307
PIXEL_DEVIATION = 0.3081

DIGITS_TRAIN, DIGITS_TEST = 6000, 1000
GLYPHS = (  # the digits 0 to 9 as 7 rows of 5 pixels
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


class Dataset(NamedTuple):
    """Images are uint8 of shape [N, 28, 28], labels int64 of shape [N] with values 0 to 9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    source: str


def load_dataset(directory: Path | str | None, download: bool = False) -> Dataset:
    """Return the MNIST of ``directory``, or the digits set where no directory is named.

    The four IDX files lie in ``directory`` or in ``directory/MNIST/raw`` (where torchvision puts
    them), plain or gzip-compressed. With ``download``, those that are missing are fetched first.
    Raises TrainingError where one is missing or damaged.
    """
    if not directory:
        return digits_set()
    directory = Path(directory)
    if download:
        download_dataset(directory)
    files = find_idx_files(directory)
    missing = [name for name in NAMES if name not in files]
    if missing:
        raise TrainingError(
            f"{directory} holds no {missing[0]} or {missing[0]}.gz, neither directly nor in "
            "MNIST/raw; name the directory of the four MNIST files with --data or MNIST_ROOT"
        )
    train = read_labelled_images(files[TRAIN_IMAGES], files[TRAIN_LABELS])
    test = read_labelled_images(files[TEST_IMAGES], files[TEST_LABELS])
    return Dataset(*train, *test, source=str(directory))


def fingerprint(dataset: Dataset) -> str:
    """Return a name of all images and labels, the same wherever their files lie and however they are packed."""
    digest = hashlib.sha256()
    for tensor in dataset[:4]:
        digest.update(f"{list(tensor.shape)}".encode())
        tensor = tensor.contiguous()
        size = tensor.numel() * tensor.element_size()  # bytes; torch 2.0 has no nbytes
        digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))  # torch may be without NumPy
    return digest.hexdigest()[:32]


def find_idx_files(directory: Path) -> dict[str, Path]:
    """Map those of the four names that are there to their files: all of one folder."""
    found = {}
    for folder in (directory, directory / "MNIST" / "raw"):
        candidates = {name: (folder / name, folder / f"{name}.gz") for name in NAMES}
        found = {name: path for name in NAMES for path in candidates[name] if path.is_file()}
        if found:
            break
    return found


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


def read_labelled_images(images_file: Path, labels_file: Path) -> tuple[Tensor, Tensor]:
    """Return uint8 images [N, 28, 28] and int64 labels [N]; raises TrainingError."""
    images = read_idx(images_file, dimensions=3)
    labels = read_idx(labels_file, dimensions=1).long()
    if images.shape[1:] != (28, 28) or not len(images):
        raise TrainingError(
            f"{images_file}: expected images of 28 x 28 pixels, found the shape "
            f"{list(images.shape)}; put the MNIST files there"
        )
    if len(labels) != len(images):
        raise TrainingError(
            f"{labels_file}: expected {len(images)} labels, one for each image of "
            f"{images_file.name}, found {len(labels)}; take both files from one source"
        )
    if labels.max() > 9:
        raise TrainingError(
            f"{labels_file}: expected labels from 0 to 9, found {labels.max()}; "
            "put the MNIST files there"
        )
    return images, labels


def read_idx(path: Path, *, dimensions: int) -> Tensor:
    """Read an IDX file of unsigned bytes, gzip-compressed if its name ends in ``.gz``.

    The format: a magic number 0x00 0x00 0x08 ``dimensions``, each dimension's size as a
    big-endian 32-bit integer, then the bytes, last dimension fastest.
    Returns uint8 of those sizes. Raises TrainingError where the file is something else.
    """
    remedy = "copy or download the file again"
    try:
        content = read_file(path, MOST_IDX_BYTES)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(content)) as stream:
                content = stream.read(MOST_IDX_BYTES + 1)
            if len(content) > MOST_IDX_BYTES:
                raise TrainingError(f"{path}: expands to more than {MOST_IDX_BYTES} bytes; {remedy}")
    except EOFError:
        raise TrainingError(
            f"{path}: expected a whole gzip stream, found one cut short after "
            f"{len(content)} bytes; {remedy}"
        ) from None
    except (OSError, zlib.error) as error:
        raise TrainingError(f"{path}: cannot be read ({error}); {remedy}") from None
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise TrainingError(
            f"{path}: expected the magic number 0x{magic.hex()}, found "
            f"0x{content[:4].hex()}: not this kind of IDX file; {remedy}"
        )
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    expected = header + torch.Size(shape).numel()
    if len(content) != expected:
        raise TrainingError(
            f"{path}: expected {expected} bytes for the shape {shape} that its header gives, "
            f"found {len(content)}; {remedy}"
        )
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)


def digits_set() -> Dataset:
    """Make small images of shifted, stretched, slanted, noisy digits: the set for a dry site.

    Drawn with integers only from a fixed seed, so that every rank and every platform gets the
    same bytes.
    """
    count = DIGITS_TRAIN + DIGITS_TEST
    generator = torch.Generator().manual_seed(28)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, (count, *(shape or (1, 1))), generator=generator)

    labels = draw(0, 9)
    pixel_height, pixel_width = draw(2, 3), draw(2, 3)
    top = (28 - 7 * pixel_height) // 2 + draw(-3, 3)
    left = (28 - 5 * pixel_width) // 2 + draw(-3, 3)
    slant = draw(-2, 2)
    y, x = torch.arange(28).view(1, 28, 1), torch.arange(28).view(1, 1, 28)
    row = (y - top) // pixel_height
    column = (x - left + slant * (y - 14) // 8) // pixel_width
    inside = (row >= 0) & (row < 7) & (column >= 0) & (column < 5)
    glyphs = torch.tensor([[[int(p) for p in line] for line in g.split()] for g in GLYPHS])
    ink = draw(130, 255) * inside * glyphs[labels, row.clamp(0, 6), column.clamp(0, 4)]
    images = (ink + draw(0, 80, 28, 28)).clamp(max=255).to(torch.uint8)
    labels = labels.flatten()
    return Dataset(
        images[:DIGITS_TRAIN],
        labels[:DIGITS_TRAIN],
        images[DIGITS_TRAIN:],
        labels[DIGITS_TRAIN:],
        source="digits set",
    )


def normalise(images: Tensor, device: torch.device) -> Tensor:
    """Turn uint8 [N, 28, 28] into float32 [N, 1, 28, 28] on ``device``, around 0 with width 1."""
    pixels = images.to(device).unsqueeze(1).float()
    return pixels.div_(255).sub_(PIXEL_MEAN).div_(PIXEL_DEVIATION)


def hold_out(images: Tensor, labels: Tensor, share: float, seed: int) -> tuple[tuple, tuple]:
    """Split samples into those to train with and a ``share`` of them to choose by, at random.

    ``images`` [N, ...] and ``labels`` [N] come back as two pairs of [N - n, ...] and [n, ...], where n
    is N times the share, rounded; the same for the same ``seed``. Raises TrainingError where one
    would be empty.
    """
    count = round(share * len(labels))
    if not 0 < count < len(labels):
        raise TrainingError(
            f"--validation {share:g} of {len(labels)} training images is {count}; take another share"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).to(labels.device)
    held, kept = order[:count], order[count:]
    return (images[kept], labels[kept]), (images[held], labels[held])


class GlobalBatchSampler:
    """Deal every global batch of an epoch out to the ranks.

    The batches depend on ``seed`` and the epoch, not on the number of ranks: batch ``i`` is
    ``order[i * batch_size : (i + 1) * batch_size]``, and rank ``r`` of ``W`` takes ``[r::W]`` of
    it. No sample is repeated or left out, so a rank's share of a batch may be one smaller than
    another's, and empty in a batch of fewer than ``W``.
    """

    def __init__(
        self,
        sample_count: int,
        batch_size: int,
        *,
        rank: int,
        world_size: int,
        seed: int,
        device: torch.device,
    ):
        self.sample_count = sample_count
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.device = device
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose order the next iteration follows."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch, the same on every rank."""
        return math.ceil(self.sample_count / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        """Yield this rank's indices, int64 of shape [n] on the device, and the global count."""
        # An epoch's seed is drawn from `seed`: with seed + epoch, neighbouring seeds would share
        # all epochs but one.
        generator = torch.Generator().manual_seed(self.seed)
        epoch_seed = torch.randint(2**31, (self.epoch + 1,), generator=generator)[-1]
        order = torch.randperm(self.sample_count, generator=generator.manual_seed(int(epoch_seed)))
        for batch in order.to(self.device).split(self.batch_size):
            yield batch[self.rank :: self.world_size], len(batch)

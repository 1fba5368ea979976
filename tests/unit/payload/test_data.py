"""training/data: the IDX files, the digits set, and what is made of them."""

import gzip
import hashlib
import resource
from typing import Callable, NamedTuple

import pytest
import torch
from mnist_ddp import load_data
from training import TrainingError
from training.data import Dataset, fingerprint, load_dataset, normalise, split
from training.data.idx import NAMES

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = NAMES


def compress(path):
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()


def test_idx_files_give_back_the_images_and_labels_written_into_them(small_mnist):
    data = load_dataset(small_mnist)
    digits = load_data(None)
    assert torch.equal(data.train_images, digits.train_images[:130])
    assert torch.equal(data.train_labels, digits.train_labels[:130])
    assert torch.equal(data.test_images, digits.test_images[:31])
    assert torch.equal(data.test_labels, digits.test_labels[:31])
    assert data.source == str(small_mnist)


def test_the_fingerprint_is_that_of_the_images_and_labels_and_not_of_the_files(small_mnist):
    before = fingerprint(load_dataset(small_mnist))
    for name in NAMES:
        compress(small_mnist / name)
    dataset = load_dataset(small_mnist)
    assert fingerprint(dataset) == before
    for part in range(4):
        tensors = list(dataset)
        tensors[part] = tensors[part].clone()
        tensors[part].view(-1)[-1] ^= 1
        assert fingerprint(Dataset(*tensors)) != before


def test_of_a_file_that_expands_to_gigabytes_only_what_its_header_says_is_unpacked(small_mnist):
    path = small_mnist / TRAIN_IMAGES
    content = path.read_bytes()
    path.unlink()
    with gzip.open(f"{path}.gz", "wb", compresslevel=1) as file:
        file.write(content)
        for _ in range(512):
            file.write(bytes(2**20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TrainingError, match=f"^{path}: cannot be read .*130, 28, 28"):
        load_dataset(small_mnist)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB


def test_files_are_found_where_torchvision_puts_them(small_mnist, tmp_path):
    (tmp_path / "data" / "MNIST").mkdir(parents=True)
    small_mnist.rename(tmp_path / "data" / "MNIST" / "raw")
    assert len(load_dataset(tmp_path / "data").train_labels) == 130


def test_the_real_mnist_is_read_as_published(mnist):
    data = load_dataset(mnist)
    # The counts of the digits, from the published training labels.
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.train_images.shape == (60000, 28, 28)
    assert data.test_images.shape == (10000, 28, 28)
    assert data.train_labels.bincount().tolist() == counts
    header = bytes.fromhex("00000803 0000ea60 0000001c 0000001c")
    content = hashlib.md5(header + data.train_images.numpy().tobytes(), usedforsecurity=False)
    assert content.hexdigest() == "6bbc9ace898e44ae57da46a324031adb"


class Damage(NamedTuple):
    """A change of the content of a file, and what the message says."""

    file: str
    change: Callable[[bytes], bytes]
    words: str


#: 130 images have 101,920 bytes after a header of 16.
DAMAGES = (
    Damage(TRAIN_IMAGES, lambda content: content[:-100], "cannot be read .*101820"),
    Damage(TRAIN_IMAGES, lambda content: content + b"\0", "cannot be read .*101921"),
    Damage(TRAIN_IMAGES, lambda _: b"", "cannot be read"),
    Damage(TRAIN_IMAGES, lambda content: b"\0\0\x08\x01" + content[4:], "cannot be read"),
    Damage(TRAIN_IMAGES, lambda content: content[:8] + bytes([0, 0, 0, 56, 0, 0, 0, 14]) + content[16:], "130 images"),
    Damage(TRAIN_LABELS, lambda content: content[:4] + bytes([0, 0, 0, 31]) + content[8:39], "31 images of 28 x 28"),
    Damage(TEST_LABELS, lambda content: content[:4] + bytes(4), "cannot be read"),
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.words)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_damaged_file_is_named_with_what_was_expected(small_mnist, damage, is_compressed):
    path = small_mnist / damage.file
    path.write_bytes(damage.change(path.read_bytes()))
    if is_compressed:
        compress(path)
    with pytest.raises(TrainingError, match=f"^{small_mnist}/.*: .*{damage.words}.* (MNIST|again)"):
        load_dataset(small_mnist)


def test_a_file_that_is_missing_or_packed_wrongly_is_named(small_mnist):
    path = small_mnist / TEST_LABELS
    content = gzip.compress(path.read_bytes())
    path.unlink()
    for wrong in (None, content[:-10], b"not compressed"):
        if wrong:
            path.with_name(f"{TEST_LABELS}.gz").write_bytes(wrong)
        with pytest.raises(TrainingError, match=f"^{path}: cannot be read .* Set --data or MNIST_ROOT"):
            load_dataset(small_mnist)


HUNDRED = torch.arange(100)
DATA = Dataset(HUNDRED.to(torch.uint8).view(100, 1, 1), HUNDRED, torch.zeros(2, 1, 1), torch.zeros(2), "made here")


def test_what_is_held_out_is_the_same_for_a_seed_and_nothing_is_in_both_parts():
    parts = split(DATA, CPU, 0.1, seed=3)
    _, held = parts.selection
    assert sorted([*parts.training[1].tolist(), *held.tolist()]) == list(range(100)) and len(held) == 10
    for images, labels in (parts.training, parts.selection):
        assert torch.equal(images, normalise(DATA.train_images[labels], CPU))
    assert torch.equal(split(DATA, CPU, 0.1, seed=3).selection[1], held)
    assert not torch.equal(split(DATA, CPU, 0.1, seed=4).selection[1], held)


def test_the_digits_set_is_the_same_bytes_everywhere():
    digits = load_data(None)
    assert digits.train_images.shape == (6000, 28, 28) and digits.train_images.dtype == torch.uint8
    assert digits.test_images.shape == (1000, 28, 28)
    content = b"".join(bytes(tensor.flatten().tolist()) for tensor in digits[:4])
    assert hashlib.sha256(content).hexdigest() == "48473d9eaea969cb25715c9899e18bc67b2be2880d5f80039ba1f5d9819c5386"

"""training/data: the IDX files, the digits set, and what is made of them."""

import gzip
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import torch
from training import TrainingError, data
from training.data import (
    Dataset,
    GlobalBatchSampler,
    digits_set,
    fingerprint,
    idx,
    load_dataset,
    normalise,
    split,
)
from training.data.download import NAMES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS

CPU = torch.device("cpu")


def compress(path):
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()


def test_idx_files_give_back_the_images_and_labels_written_into_them(small_mnist):
    data, digits = load_dataset(small_mnist), digits_set()
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
        assert fingerprint(data.Dataset(*tensors)) != before


def test_a_file_that_expands_to_more_than_images_need_is_refused(small_mnist, monkeypatch):
    monkeypatch.setattr(idx, "MOST_IDX_BYTES", 3000)
    path = small_mnist / TRAIN_IMAGES
    path.unlink()
    path = path.with_name(f"{TRAIN_IMAGES}.gz")
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(TrainingError, match=f"^{path}: expected at most 3000 bytes, found more. Copy or download"):
        load_dataset(small_mnist)
    path.write_bytes(bytes(4000))
    with pytest.raises(TrainingError, match=f"^{path}: 4000 bytes, expected at most 3000"):
        load_dataset(small_mnist)


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


def rewrite(change):
    """A function that changes the content of a file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def cut_short_compressed(path):
    compress(path)
    rewrite(lambda content: content[:-100])(path.with_name(f"{path.name}.gz"))


def no_gzip(path):
    path.rename(path.with_name(path.name + ".gz"))


def copy_of(name):
    return lambda path: shutil.copy(path.with_name(name), path)


def without_entries(path):
    header = path.read_bytes()[: 16 if "images" in path.name else 8]
    path.write_bytes(header[:4] + bytes(4) + header[8:])


#: Of 130 images of 56 x 14 pixels.
SIZES = b"".join(number.to_bytes(4, "big") for number in (130, 56, 14))


@pytest.mark.parametrize(
    ("name", "damage", "expected_and_found"),
    [
        (TRAIN_IMAGES, rewrite(lambda content: content[:-100]), ("expected 101936 bytes", "found 101836")),
        (TRAIN_IMAGES, cut_short_compressed, (f"{TRAIN_IMAGES}.gz", "cannot be read (Compressed file ended before")),
        (TRAIN_IMAGES, rewrite(lambda content: content + b"\0"), ("expected 101936 bytes", "found 101937")),
        (TRAIN_IMAGES, rewrite(lambda _: b""), ("expected the magic number 0x00000803", "found 0x.")),
        (TRAIN_IMAGES, no_gzip, (f"{TRAIN_IMAGES}.gz", "cannot be read (Not a gzipped file")),
        (TRAIN_IMAGES, copy_of(TRAIN_LABELS), ("expected the magic number 0x00000803", "found 0x00000801")),
        (
            TRAIN_IMAGES,
            rewrite(lambda content: content[:4] + SIZES + content[16:]),
            ("expected images of 28 x 28 pixels", "found [56, 14]"),
        ),
        (TRAIN_LABELS, copy_of(TEST_LABELS), ("expected 130 labels", "found 31")),
        (TRAIN_LABELS, rewrite(lambda content: content[:-1] + b"\x0a"), ("expected labels from 0 to 9", "found 10")),
        (TRAIN_IMAGES, without_entries, ("expected at least one entry", "found the shape [0, 28, 28]")),
        (TEST_LABELS, without_entries, ("expected at least one entry", "found the shape [0]")),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected_and_found(small_mnist, name, damage, expected_and_found):
    damage(small_mnist / name)
    with pytest.raises(TrainingError) as fault:
        load_dataset(small_mnist)
    message = str(fault.value)
    assert message.startswith(str(small_mnist / name))
    assert all(part in message for part in expected_and_found)
    assert ". " in message and "\n" not in message


def test_a_missing_file_is_named_with_the_places_looked_at(small_mnist):
    (small_mnist / TEST_LABELS).unlink()
    with pytest.raises(TrainingError, match=f"{small_mnist} holds no {TEST_LABELS} or {TEST_LABELS}.gz, .*MNIST/raw"):
        load_dataset(small_mnist)


def test_what_is_no_directory_is_called_what_it_is(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in {
        tmp_path / "nowhere": "no such directory",
        tmp_path / "pipe": "a FIFO, not a directory",
        Path("/dev/null"): "a device, not a directory",
    }.items():
        with pytest.raises(TrainingError, match=f"^{path}: {words}. Set --data or MNIST_ROOT"):
            load_dataset(path)


HUNDRED = torch.arange(100)
DATA = Dataset(HUNDRED.to(torch.uint8).view(100, 1, 1), HUNDRED, torch.zeros(2, 1, 1), torch.zeros(2), "made here")


def test_what_is_held_out_is_the_same_for_a_seed_and_nothing_is_in_both_parts():
    (kept, of_kept), (held, of_held), _ = split(DATA, CPU, 0.1, seed=3)
    assert (len(kept), len(held)) == (90, 10)
    assert sorted([*of_kept.tolist(), *of_held.tolist()]) == list(range(100))
    for images, labels in ((kept, of_kept), (held, of_held)):
        assert torch.equal(images, normalise(DATA.train_images[labels], CPU))
    assert torch.equal(split(DATA, CPU, 0.1, seed=3).selection[1], of_held)
    assert not torch.equal(split(DATA, CPU, 0.1, seed=4).selection[1], of_held)


@pytest.mark.parametrize("share", [0.004, 0.996])
def test_a_share_that_leaves_one_part_empty_is_an_error(share):
    with pytest.raises(TrainingError, match=f"--validation {share} of 100 training images is "):
        split(DATA, CPU, share, seed=0)


def test_each_epoch_of_each_seed_has_an_order_of_its_own_and_always_the_same():
    def draw(seed, epoch):
        sampler = GlobalBatchSampler(130, 32, rank=0, world_size=1, seed=seed, device=CPU)
        sampler.epoch = epoch
        return tuple(torch.cat([indices for indices, _ in sampler]).tolist())

    orders = {draw(seed, epoch) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16 and draw(3, 3) in orders
    assert all(sorted(order) == list(range(130)) for order in orders)


def test_the_digits_set_is_the_same_bytes_everywhere():
    digits = load_dataset(None)
    assert digits.train_images.shape == (6000, 28, 28) and digits.train_images.dtype == torch.uint8
    assert digits.test_images.shape == (1000, 28, 28)
    content = b"".join(bytes(tensor.flatten().tolist()) for tensor in digits[:4])
    assert hashlib.sha256(content).hexdigest() == "e2ef8c329fa01a15d82aba0c588f35d3033576c2089117e643ee416d6b636efd"


def test_normalised_mnist_has_mean_0_and_width_1(mnist):
    images = normalise(load_dataset(mnist).train_images, CPU)
    assert images.shape == (60000, 1, 28, 28) and images.dtype == torch.float32
    assert abs(images.mean()) < 0.001 and abs(images.std() - 1) < 0.001


def test_normalising_leaves_the_images_as_they_are():
    images = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    normalise(images, CPU)
    assert images.min() == 255

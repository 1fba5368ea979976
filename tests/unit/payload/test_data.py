"""training/data.py: the IDX files, the digits set, and the order in which the ranks take the samples."""

import ast
import contextlib
import functools
import gzip
import hashlib
import http.server
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from training import TrainingError, data
from training.data import (
    NAMES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    GlobalBatchSampler,
    digits_set,
    fingerprint,
    hold_out,
    load_dataset,
    normalise,
)

CPU = torch.device("cpu")


def compress(path):
    with gzip.open(f"{path}.gz", "wb") as file:
        file.write(path.read_bytes())
    path.unlink()


def sampler(count=130, batch=32, rank=0, size=1, seed=0, epoch=0):
    made = GlobalBatchSampler(count, batch, rank=rank, world_size=size, seed=seed, device=CPU)
    made.set_epoch(epoch)
    return made


def epoch_order(**settings):
    return torch.cat([indices for indices, _ in sampler(**settings)])


def test_idx_files_give_back_the_images_and_labels_written_into_them(small_mnist):
    data, digits = load_dataset(small_mnist), digits_set()
    assert torch.equal(data.train_images, digits.train_images[:130])
    assert torch.equal(data.train_labels, digits.train_labels[:130])
    assert torch.equal(data.test_images, digits.test_images[:31])
    assert torch.equal(data.test_labels, digits.test_labels[:31])
    assert data.source == str(small_mnist)


def test_compressed_files_are_read_like_plain_ones(small_mnist):
    plain = load_dataset(small_mnist)
    for path in list(small_mnist.iterdir()):
        compress(path)
    assert all(torch.equal(a, b) for a, b in zip(plain[:4], load_dataset(small_mnist)[:4]))


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
    monkeypatch.setattr(data, "MOST_IDX_BYTES", 3000)
    path = small_mnist / TRAIN_IMAGES
    path.unlink()
    path = path.with_name(f"{TRAIN_IMAGES}.gz")
    path.write_bytes(gzip.compress(bytes(10**6)))
    with pytest.raises(TrainingError, match=f"^{path}: expands to more than 3000 bytes; copy or download"):
        load_dataset(small_mnist)
    path.write_bytes(bytes(4000))
    with pytest.raises(TrainingError, match=f"^{path}: 4000 bytes, though no more than 3000 are expected"):
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


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-100])


def cut_short_compressed(path):
    compress(path)
    compressed = path.with_name(path.name + ".gz")
    compressed.write_bytes(compressed.read_bytes()[:-100])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def empty(path):
    path.write_bytes(b"")


def no_gzip(path):
    path.rename(path.with_name(path.name + ".gz"))


def replace_with_labels(path):
    shutil.copy(path.with_name(TRAIN_LABELS), path)


def halve_image_width(path):
    content = bytearray(path.read_bytes())
    content[4:16] = b"".join(n.to_bytes(4, "big") for n in (130, 56, 14))
    path.write_bytes(content)


def take_labels_of_the_test_set(path):
    shutil.copy(path.with_name(TEST_LABELS), path)


def label_ten(path):
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")


@pytest.mark.parametrize(
    ("name", "damage", "expected_and_found"),
    [
        (TRAIN_IMAGES, cut_short, ("expected 101936 bytes", "found 101836")),
        (TRAIN_IMAGES, cut_short_compressed, (f"{TRAIN_IMAGES}.gz", "expected a whole gzip stream", "cut short")),
        (TRAIN_IMAGES, lengthen, ("expected 101936 bytes", "found 101937")),
        (TRAIN_IMAGES, empty, ("expected the magic number 0x00000803", "found 0x:")),
        (TRAIN_IMAGES, no_gzip, (f"{TRAIN_IMAGES}.gz", "cannot be read (Not a gzipped file")),
        (TRAIN_IMAGES, replace_with_labels, ("expected the magic number 0x00000803", "found 0x00000801")),
        (TRAIN_IMAGES, halve_image_width, ("expected images of 28 x 28 pixels", "found the shape [130, 56, 14]")),
        (TRAIN_LABELS, take_labels_of_the_test_set, ("expected 130 labels", "found 31")),
        (TRAIN_LABELS, label_ten, ("expected labels from 0 to 9", "found 10")),
    ],
)
def test_a_damaged_file_is_named_with_what_was_expected_and_found(small_mnist, name, damage, expected_and_found):
    damage(small_mnist / name)
    with pytest.raises(TrainingError) as fault:
        load_dataset(small_mnist)
    message = str(fault.value)
    assert message.startswith(str(small_mnist / name))
    assert all(part in message for part in expected_and_found)
    assert "; " in message and "\n" not in message


def test_a_missing_file_is_named_with_the_places_looked_at(small_mnist):
    (small_mnist / TEST_LABELS).unlink()
    with pytest.raises(TrainingError, match=f"{small_mnist} holds no {TEST_LABELS} or {TEST_LABELS}.gz, .*MNIST/raw"):
        load_dataset(small_mnist)


def test_a_directory_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(TrainingError, match=f"nowhere holds no {TRAIN_IMAGES}"):
        load_dataset(tmp_path / "nowhere")


def test_what_is_held_out_is_the_same_for_a_seed_and_nothing_is_in_both_parts():
    images, labels = torch.arange(100).view(100, 1, 1), torch.arange(100)
    (kept, of_kept), (held, of_held) = hold_out(images, labels, 0.1, seed=3)
    assert (len(kept), len(held)) == (90, 10)
    assert sorted([*of_kept.tolist(), *of_held.tolist()]) == list(range(100))
    assert torch.equal(kept.flatten(), of_kept) and torch.equal(held.flatten(), of_held)
    assert torch.equal(hold_out(images, labels, 0.1, seed=3)[1][1], of_held)
    assert not torch.equal(hold_out(images, labels, 0.1, seed=4)[1][1], of_held)


@pytest.mark.parametrize("share", [0.004, 0.996])
def test_a_share_that_leaves_one_part_empty_is_an_error(share):
    with pytest.raises(TrainingError, match=f"--validation {share} of 100 training images is "):
        hold_out(torch.zeros(100, 1, 1), torch.zeros(100), share, seed=0)


def test_the_digits_set_is_the_same_bytes_everywhere():
    digits = load_dataset(None)
    assert digits.train_images.shape == (6000, 28, 28) and digits.train_images.dtype == torch.uint8
    assert digits.test_images.shape == (1000, 28, 28)
    content = b"".join(bytes(tensor.flatten().tolist()) for tensor in digits[:4])
    assert hashlib.sha256(content).hexdigest() == "e2ef8c329fa01a15d82aba0c588f35d3033576c2089117e643ee416d6b636efd"


def test_the_digits_set_has_about_as_many_of_each_digit():
    digits = digits_set()
    assert digits.train_labels.bincount(minlength=10).min() > 500
    assert digits.test_labels.bincount(minlength=10).min() > 70


def test_the_digits_of_the_test_set_are_not_among_those_of_the_training():
    digits = digits_set()
    training = {bytes(image.flatten().tolist()) for image in digits.train_images}
    assert not training & {bytes(image.flatten().tolist()) for image in digits.test_images}


def test_normalised_mnist_has_mean_0_and_width_1(mnist):
    images = normalise(load_dataset(mnist).train_images, CPU)
    assert images.shape == (60000, 1, 28, 28) and images.dtype == torch.float32
    assert abs(images.mean()) < 0.001 and abs(images.std() - 1) < 0.001


def test_normalising_leaves_the_images_as_they_are():
    images = torch.full((1, 28, 28), 255, dtype=torch.uint8)
    normalise(images, CPU)
    assert images.min() == 255


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_ranks_shares_are_the_global_batch_dealt_out(size):
    alone = list(sampler())
    shares = [list(sampler(rank=rank, size=size)) for rank in range(size)]
    for step, (batch, count) in enumerate(alone):
        dealt = torch.empty(count, dtype=torch.int64)
        for rank in range(size):
            indices, global_count = shares[rank][step]
            assert global_count == count == len(batch)
            dealt[rank::size] = indices
        assert torch.equal(dealt, batch)


def test_every_sample_is_taken_once_in_an_epoch():
    assert epoch_order().sort().values.tolist() == list(range(130))


def test_the_last_batch_is_short_and_may_leave_a_rank_empty_handed():
    batches = list(sampler(rank=2, size=3))
    assert len(batches) == len(sampler(rank=2, size=3)) == 5
    assert [count for _, count in batches] == [32, 32, 32, 32, 2]
    assert len(batches[-1][0]) == 0


def test_each_epoch_has_its_own_order():
    orders = [epoch_order(epoch=epoch).tolist() for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_an_epoch_has_the_same_order_again():
    assert torch.equal(epoch_order(epoch=2), epoch_order(epoch=2))


def test_neighbouring_seeds_share_no_epoch():
    orders = {tuple(epoch_order(seed=seed, epoch=epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


RECIPE = Path(__file__).resolve().parents[3] / "easyconfigs" / "m" / "MNIST" / "MNIST-1998.eb"


class Mirror(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and notes what was asked for.

    In "/cut/" it ends in the middle, in "/slow/" it takes long, in "/drip/" it comes byte by byte.
    """

    asked = ()  # each test's own list

    def translate_path(self, path):
        return super().translate_path("/" + path.rsplit("/", 1)[-1])

    def copyfile(self, source, outputfile):
        if "/slow/" in self.path:
            time.sleep(0.3)
        content = source.read()
        if "/drip/" in self.path:
            with contextlib.suppress(OSError):  # the other side has given up
                for byte in content:
                    outputfile.write(bytes([byte]))
                    time.sleep(0.03)
            return
        outputfile.write(content[: len(content) // 2] if "/cut/" in self.path else content)

    def log_request(self, *_):
        self.asked.append(self.path)


@pytest.fixture
def mirror(tmp_path, small_mnist, monkeypatch):
    """A web server with the small set's files as the mirrors have them, whose checksums are expected."""
    for path in list(small_mnist.iterdir()):
        compress(path)
    sums = {name: (hashlib.sha256((small_mnist / f"{name}.gz").read_bytes()).hexdigest(),) for name in NAMES}
    handler = type("OneTestsMirror", (Mirror,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=small_mnist))
    server.asked = handler.asked
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(data, "MIRRORS", (f"{server.url}/good/",))
    monkeypatch.setattr(data, "CHECKSUMS", sums)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def files(directory):
    return sorted(os.listdir(directory))


ALL = sorted(f"{name}.gz" for name in NAMES)


def test_files_that_are_missing_are_downloaded_once_and_only_when_asked(mirror, tmp_path):
    target = tmp_path / "new" / "mnist"
    with pytest.raises(TrainingError, match="holds no"):
        load_dataset(target)
    assert not target.exists()
    assert len(load_dataset(target, download=True).train_labels) == 130
    assert files(target) == ALL
    assert len(load_dataset(target, download=True).test_labels) == 31
    assert sorted(mirror.asked) == [f"/good/{name}" for name in ALL]


def test_files_that_are_there_stay_as_they_are(mirror, tmp_path, small_mnist):
    target = tmp_path / "target"
    target.mkdir()
    (target / TRAIN_LABELS).write_bytes(gzip.decompress((small_mnist / f"{TRAIN_LABELS}.gz").read_bytes()))
    assert len(load_dataset(target, download=True).train_labels) == 130
    assert f"/good/{TRAIN_LABELS}.gz" not in mirror.asked and len(mirror.asked) == 3


@pytest.mark.parametrize("bad", ["cut", "nowhere", "closed"])
def test_a_mirror_that_fails_is_followed_by_the_next(mirror, tmp_path, monkeypatch, bad):
    first = {"cut": f"{mirror.url}/cut/", "nowhere": f"{mirror.url}/x/y-", "closed": "http://127.0.0.1:9/"}[bad]
    monkeypatch.setattr(data, "MIRRORS", (first, *data.MIRRORS))
    assert len(load_dataset(tmp_path / "target", download=True).train_labels) == 130
    assert files(tmp_path / "target") == ALL


def test_what_no_mirror_has_whole_is_one_line_and_leaves_no_file(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "MIRRORS", (f"{mirror.url}/cut/", "http://127.0.0.1:9/"))
    with pytest.raises(TrainingError) as fault:
        load_dataset(tmp_path / "target", download=True)
    message = str(fault.value)
    assert message.startswith(f"{TRAIN_IMAGES}.gz cannot be downloaded ({mirror.url}/cut/")
    assert "Connection refused" in message and "https_proxy" in message and "\n" not in message
    assert files(tmp_path / "target") == []


def test_a_file_with_another_checksum_is_not_taken(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "CHECKSUMS", {**data.CHECKSUMS, TEST_LABELS: ("0" * 64,)})
    with pytest.raises(TrainingError, match=rf"{TEST_LABELS}.gz cannot be downloaded .*wrong SHA-256"):
        load_dataset(tmp_path / "target", download=True)
    assert f"{TEST_LABELS}.gz" not in files(tmp_path / "target") and len(files(tmp_path / "target")) == 3


DOWNLOAD = """
import sys
from pathlib import Path
from training import data
data.MIRRORS, data.CHECKSUMS = {settings}
print(len(data.load_dataset(Path(sys.argv[1]), download=True).train_labels), flush=True)
"""


def start_downloads(payload, target, count, **variables):
    code = DOWNLOAD.format(settings=repr((data.MIRRORS, data.CHECKSUMS)))
    environ = {**os.environ, "PYTHONPATH": str(payload), **variables}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, target], env=environ,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(count)
    ]  # fmt: skip


def test_of_several_processes_one_downloads_and_the_others_wait_and_say_so(mirror, tmp_path, monkeypatch, payload):
    monkeypatch.setattr(data, "MIRRORS", (f"{mirror.url}/slow/",))
    target = tmp_path / "target"
    target.mkdir()
    with data.lock(target):  # until all have started
        ranks = start_downloads(payload, target, 3)
        for rank in ranks:
            assert rank.stderr.readline() == f"another process downloads MNIST to {target}: waiting for it\n"
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [output for output, _ in outputs] == ["130\n"] * 3, outputs
    assert sorted(mirror.asked) == [f"/slow/{name}" for name in ALL]
    assert sorted(errors.count("downloading") for _, errors in outputs) == [0, 0, 4]
    assert files(target) == ALL


def test_a_process_that_was_killed_holds_nobody_up(mirror, tmp_path, monkeypatch, payload):
    monkeypatch.setattr(data, "MIRRORS", (f"{mirror.url}/slow/",))
    (process,) = start_downloads(payload, tmp_path / "target", 1)
    assert process.stderr.readline().startswith("downloading ")
    process.kill()
    process.communicate()
    assert len(load_dataset(tmp_path / "target", download=True).train_labels) == 130
    assert files(tmp_path / "target") == ALL


def test_a_proxy_of_the_environment_is_used(mirror, tmp_path, monkeypatch, payload):
    monkeypatch.setattr(data, "MIRRORS", ("http://mirror.invalid/behind/",))
    (process,) = start_downloads(payload, tmp_path / "target", 1, http_proxy=mirror.url, no_proxy="")
    assert process.communicate(timeout=60)[0] == "130\n"
    assert sorted(mirror.asked) == [f"http://mirror.invalid/behind/{name}" for name in ALL]


def test_a_directory_that_cannot_be_made_is_one_line(mirror, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="MNIST cannot be put there .Not a directory.; name a directory"):
        load_dataset(tmp_path / "file" / "mnist", download=True)


def test_a_file_system_without_locks_is_one_line(mirror, tmp_path, monkeypatch):
    def lockf(*_):
        raise OSError(38, "Function not implemented")  # Lustre that is mounted without -o flock

    monkeypatch.setattr(data.fcntl, "lockf", lockf)
    with pytest.raises(TrainingError, match="Function not implemented.; .* on a file system with locks"):
        load_dataset(tmp_path / "target", download=True)


def test_mirrors_and_checksums_are_those_of_the_recipe():
    recipe = {
        line.targets[0].id: line.value for line in ast.parse(RECIPE.read_text()).body if isinstance(line, ast.Assign)
    }
    assert tuple(ast.literal_eval(recipe["source_urls"])) == data.MIRRORS
    sources = [name.removesuffix(".gz") for name in ast.literal_eval(recipe["data_sources"])]
    checksums = [sums if isinstance(sums, tuple) else (sums,) for sums in ast.literal_eval(recipe["checksums"])]
    assert dict(zip(sources, checksums)) == data.CHECKSUMS


class Drip:
    """A response of which one byte at a time arrives."""

    def __init__(self, count, pause):
        self.count, self.pause = count, pause

    def read1(self, _size):
        time.sleep(self.pause)
        self.count -= 1
        return b"x" if self.count >= 0 else b""


def test_a_mirror_that_drips_is_given_up():
    with pytest.raises(OSError, match="less than 1000 bytes/s over 0.1 s"):
        data.read_steadily(Drip(10**6, 0.01), "url", seconds=0.1)


def test_a_download_reports_its_progress(monkeypatch, capsys):
    monkeypatch.setattr(data, "REPORT_SECONDS", 0.05)
    assert data.read_steadily(Drip(3, 0.04), "url") == b"xxx"
    assert set(capsys.readouterr().err.splitlines()) == {"downloading url: 0.0 MB so far"}


def test_a_mirror_that_drips_is_followed_by_the_next(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(data, "MIRRORS", (f"{mirror.url}/drip/", *data.MIRRORS))
    assert len(load_dataset(tmp_path / "target", download=True).train_labels) == 130

"""training/data/download.py: the MNIST files are fetched once and completely, whatever mirrors and processes do."""

import ast
import fcntl
import functools
import gzip
import hashlib
import http.server
import os
import threading
import time
from pathlib import Path

import pytest
from launching import PAYLOAD, Ranks
from training import TrainingError
from training.data import download, load_dataset
from training.data.download import NAMES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS

RECIPE = Path(__file__).resolve().parents[3] / "easyconfigs" / "m" / "MNIST" / "MNIST-1998.eb"


class Mirror(http.server.SimpleHTTPRequestHandler):
    """Serves a directory, and notes what was asked for.

    In "/cut/" it ends in the middle, in "/slow/" it takes long.
    """

    asked = ()  # each test's own list

    def translate_path(self, path):
        return super().translate_path("/" + path.rsplit("/", 1)[-1])

    def copyfile(self, source, outputfile):
        if "/slow/" in self.path:
            time.sleep(0.3)
        content = source.read()
        outputfile.write(content[: len(content) // 2] if "/cut/" in self.path else content)

    def log_request(self, *_):
        self.asked.append(self.path)


@pytest.fixture
def mirror(tmp_path, small_mnist, monkeypatch):
    """A web server with the small set's files as the mirrors have them, whose checksums are expected."""
    for path in list(small_mnist.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    sums = {name: (hashlib.sha256((small_mnist / f"{name}.gz").read_bytes()).hexdigest(),) for name in NAMES}
    handler = type("OneTestsMirror", (Mirror,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=small_mnist))
    server.asked = handler.asked
    server.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(download, "MIRRORS", (f"{server.url}/good/",))
    monkeypatch.setattr(download, "CHECKSUMS", sums)
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
    with pytest.raises(TrainingError, match="no such directory"):
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
    monkeypatch.setattr(download, "MIRRORS", (first, *download.MIRRORS))
    assert len(load_dataset(tmp_path / "target", download=True).train_labels) == 130
    assert files(tmp_path / "target") == ALL


def test_what_no_mirror_has_whole_or_with_its_checksum_is_one_line(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "CHECKSUMS", {**download.CHECKSUMS, TEST_LABELS: ("0" * 64,)})
    with pytest.raises(TrainingError, match=rf"{TEST_LABELS}.gz cannot be downloaded .*wrong SHA-256"):
        load_dataset(tmp_path / "first", download=True)
    assert files(tmp_path / "first") == sorted({*ALL} - {f"{TEST_LABELS}.gz"})
    monkeypatch.setattr(download, "MIRRORS", (f"{mirror.url}/cut/", "http://127.0.0.1:9/"))
    with pytest.raises(TrainingError) as fault:
        load_dataset(tmp_path / "target", download=True)
    message = str(fault.value)
    assert message.startswith(f"{TRAIN_IMAGES}.gz cannot be downloaded ({mirror.url}/cut/")
    assert "Connection refused" in message and "https_proxy" in message and "\n" not in message
    assert files(tmp_path / "target") == []


DOWNLOAD = """
import sys
from pathlib import Path
from training import data
from training.data import download
download.MIRRORS, download.CHECKSUMS = {settings}
print(len(data.load_dataset(Path(sys.argv[1]), download=True).train_labels), flush=True)
"""


def start_downloads(target, count, **variables):
    code = DOWNLOAD.format(settings=repr((download.MIRRORS, download.CHECKSUMS)))
    return Ranks(("-c", code, target), [{"PYTHONPATH": str(PAYLOAD), **variables}] * count)


def count_waiting(path):
    """How many processes wait for the lock on a file: proc_locks(5) lists them with an arrow."""
    inode = f":{path.stat().st_ino} "
    return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_of_several_processes_one_downloads_and_the_others_wait(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MIRRORS", (f"{mirror.url}/slow/",))
    target = tmp_path / "target"
    target.mkdir()
    with (target / ".download.lock").open("a") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        ranks = start_downloads(target, 3)
        ranks.wait_until(lambda: count_waiting(target / ".download.lock") == 3)
    ended = ranks.wait(status=0)
    assert [rank.stdout for rank in ended] == ["130\n"] * 3, ended
    assert sorted(mirror.asked) == [f"/slow/{name}" for name in ALL]
    assert sorted(rank.stderr.count("downloading http") for rank in ended) == [0, 0, 4]
    assert files(target) == ALL


def test_a_process_that_was_killed_does_not_block_others(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MIRRORS", (f"{mirror.url}/slow/",))
    ranks = start_downloads(tmp_path / "target", 1)
    ranks.wait_until_said("downloading ", stream=2)
    ranks.kill()
    assert ranks.wait()[0].stdout == ""
    assert len(load_dataset(tmp_path / "target", download=True).train_labels) == 130
    assert files(tmp_path / "target") == ALL


def test_a_proxy_of_the_environment_is_used(mirror, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "MIRRORS", ("http://mirror.invalid/behind/",))
    (rank,) = start_downloads(tmp_path / "target", 1, http_proxy=mirror.url, no_proxy="").wait(status=0)
    assert rank.stdout == "130\n"
    assert sorted(mirror.asked) == [f"http://mirror.invalid/behind/{name}" for name in ALL]


def test_a_directory_that_cannot_be_made_and_a_file_system_without_locks_are_one_line(mirror, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="cannot be written .Not a directory.. Choose a writable"):
        load_dataset(tmp_path / "file" / "mnist", download=True)

    def lockf(*_):
        raise OSError(38, "Function not implemented")  # Lustre that is mounted without -o flock

    monkeypatch.setattr(download.fcntl, "lockf", lockf)
    with pytest.raises(TrainingError, match="Function not implemented.. .* on a file system with locks"):
        load_dataset(tmp_path / "target", download=True)


def test_mirrors_and_checksums_are_those_of_the_recipe():
    recipe = {
        line.targets[0].id: line.value for line in ast.parse(RECIPE.read_text()).body if isinstance(line, ast.Assign)
    }
    assert tuple(ast.literal_eval(recipe["source_urls"])) == download.MIRRORS
    sources = [name.removesuffix(".gz") for name in ast.literal_eval(recipe["data_sources"])]
    checksums = [sums if isinstance(sums, tuple) else (sums,) for sums in ast.literal_eval(recipe["checksums"])]
    assert dict(zip(sources, checksums)) == download.CHECKSUMS

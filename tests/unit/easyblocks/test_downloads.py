"""Downloads from slow servers: the next mirror is tried, and a command that waits for a registry is ended."""

import contextlib
import http.server
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from recipes import RECIPES

from pytorch_install.sources import downloads

CONTENT = bytes(range(256)) * 1000

pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


@pytest.fixture
def impatient(prefix, monkeypatch):
    """Limits of a second and a half, for what the test starts: earlier tests have left a Python that forks."""
    monkeypatch.setattr(downloads, "patience", lambda: 1.5)
    earlier, all_of_them = downloads.descendants(), downloads.descendants
    monkeypatch.setattr(downloads, "descendants", lambda *processes: all_of_them(*processes) - earlier)


@contextlib.contextmanager
def server(answer):
    """A server on loopback; `answer` gets the request's handler and an event that is set when the test ends."""
    ended = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            with contextlib.suppress(OSError):
                answer(self, ended)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}/"
        finally:
            ended.set()
            listener.shutdown()


def whole(handler, _, part=CONTENT):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(part)


def cut(handler, ended):
    whole(handler, ended, CONTENT[:1000])


def drip(handler, ended, before=b"HTTP/1.0 200 OK\r\n\r\n"):
    handler.wfile.write(before)
    while not ended.wait(0.05):
        handler.wfile.write(b"x")


def drip_headers(handler, ended):
    drip(handler, ended, b"HTTP/1.0 200 OK\r\nServer: ")


def missing(handler, _):
    handler.send_error(404)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(drip, "less than 1 kB/s arrived for 1.5 s"), (drip_headers, "less than 1 kB/s arrived"),
     (cut, "received 1000 of 256000 bytes"), (missing, "HTTP Error 404")],
)  # fmt: skip
def test_the_next_mirror_is_used_if_one_does_not_serve_a_file(impatient, dataset, answer, reason):
    with server(answer) as bad, server(whole) as good:
        path = dataset([bad, good]).obtain_file("train-images-idx3-ubyte.gz")
        assert Path(path).read_bytes() == CONTENT
        with pytest.raises(EasyBuildError, match=rf"t10k.gz could not be fetched\. {bad}t10k.gz: {reason}.*/m/MNIST\."):
            dataset([bad]).obtain_file("t10k.gz")


@pytest.fixture
def dataset(easyblock):
    """A function that makes the easyblock of the MNIST recipe with other mirrors."""

    def make(urls):
        app = easyblock(next(path for path in RECIPES if path.name == "MNIST-1998.eb"))
        app.cfg["source_urls"] = urls
        return app

    return make


def test_a_compressed_file_that_is_not_the_recipes_is_refused_before_it_is_unpacked(dataset):
    with server(whole) as url:
        app = dataset([url])
        app.fetch_step()
        with pytest.raises(EasyBuildError, match="Checksum verification"):
            app.checksum_step()
        app.cfg["checksums"] = []
        with pytest.raises(EasyBuildError, match="'checksums' has fewer entries than the data set has files"):
            app.checksum_step()


def run(path, program):
    """Run a program that downloads to a path, watched; returns the watch."""
    with downloads.watched([str(path)], "image") as watch:
        subprocess.run([sys.executable, "-c", program], check=False)
    return watch


def test_a_command_that_receives_too_little_is_ended_and_one_that_computes_is_not(impatient, tmp_path, monkeypatch):
    waiting = "import subprocess; subprocess.run(['sleep', '300'])"
    assert run(tmp_path, waiting).stalled == "less than 1 kB/s arrived for 1.5 s, after 0.0 MB"
    drips = f"""import time
with open({str(tmp_path / "file")!r}, "wb", buffering=0) as file:
    for _ in range(6000):
        file.write(b"x")
        time.sleep(0.05)"""
    assert run(tmp_path, drips).stalled
    monkeypatch.setattr(downloads, "patience", lambda: 3)  # a busy machine starts Python slowly,
    monkeypatch.setattr(downloads, "BUSY", 0.01)  # and gives it a small share of a core
    computing = "import time\nwhile time.process_time() < 4: pass"
    assert not run(tmp_path, computing).stalled


def test_a_busy_command_is_not_ended_when_another_process_ends_that_has_worked(impatient, tmp_path, monkeypatch):
    began = time.monotonic()

    def seconds():
        now = time.monotonic() - began
        return {1: 50.0, 2: now} if now < 0.5 else {2: now}

    monkeypatch.setattr(downloads, "cpu_seconds", seconds)
    assert not run(tmp_path, "import time; time.sleep(3)").stalled


@pytest.fixture
def earlier():
    """A process that another test has left."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_processes_of_earlier_tests_go_on(earlier, impatient, tmp_path):
    assert run(tmp_path, "import time; time.sleep(300)").stalled
    assert earlier.poll() is None


def test_progress_has_a_percentage_if_the_size_is_known(impatient, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(downloads, "PROGRESS", 0.2)

    def slowly(handler, ended):
        whole(handler, ended, b"")
        for start in range(0, len(CONTENT), 32000):
            ended.wait(0.15)
            handler.wfile.write(CONTENT[start:start + 32000])

    with server(slowly) as url:
        downloads.fetch_url(url, str(tmp_path / "file.gz"))
    assert "file.gz: 0 of 0 MB (" in capfd.readouterr().out

"""Downloads from slow servers: the next mirror is tried, and a command that waits for a registry is ended."""

import contextlib
import http.server
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from recipes import RECIPES

from pytorch_install.sources import downloads

CONTENT = bytes(range(256)) * 1000

pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


#: Limit in seconds of what never gets far, and of what arrives, however busy the machine is.
SHORT, LONG = 0.5, 3600


@pytest.fixture
def own_processes(prefix, monkeypatch):
    """Only what the test starts is watched: earlier tests have left a Python that forks."""
    earlier, all_of_them = downloads.descendants(), downloads.descendants
    monkeypatch.setattr(downloads, "descendants", lambda *processes: all_of_them(*processes) - earlier)


@pytest.fixture
def impatient(own_processes, monkeypatch):
    """Limits of half a second."""
    monkeypatch.setattr(downloads, "patience", lambda: SHORT)


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
    ("answer", "limit", "reason"),
    [(drip, SHORT, "less than 1 kB/s arrived for 0.5 s"), (drip_headers, SHORT, "less than 1 kB/s arrived"),
     (cut, LONG, "received 1000 of 256000 bytes"), (missing, LONG, "HTTP Error 404")],
)  # fmt: skip
def test_the_next_mirror_is_used_if_one_does_not_serve_a_file(
    own_processes, monkeypatch, dataset, answer, limit, reason
):
    limits = iter([limit, LONG, limit])  # of the downloads below: bad, good, bad
    monkeypatch.setattr(downloads, "patience", lambda: next(limits))
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


def test_a_command_that_receives_too_little_is_ended(impatient, tmp_path):
    waiting = "import subprocess; subprocess.run(['sleep', '300'])"
    assert run(tmp_path, waiting).stalled == "less than 1 kB/s arrived for 0.5 s, after 0.0 MB"
    drips = f"""import time
with open({str(tmp_path / "file")!r}, "wb", buffering=0) as file:
    for _ in range(6000):
        file.write(b"x")
        time.sleep(0.05)"""
    assert run(tmp_path, drips).stalled


class Clock:
    """A clock, and the event of a watch: each of its waits takes its time on this clock; set after 10 minutes."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds
        return self.now >= 600


@pytest.fixture
def stalled(prefix, monkeypatch, tmp_path):
    """A function that returns after how many seconds a watch ends commands, or None; it gets their CPU time by id."""
    clock = Clock()
    monkeypatch.setattr(downloads, "time", types.SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(downloads, "patience", lambda: 60)
    monkeypatch.setattr(downloads, "descendants", set)
    monkeypatch.setattr(downloads, "end_processes", lambda _: None)

    def watch(seconds):
        clock.now = 0.0
        monkeypatch.setattr(downloads, "cpu_seconds", lambda: seconds(clock.now))
        watch = downloads.Watch([str(tmp_path)], "image")
        watch.ended = clock
        watch.run()
        return clock.now if watch.stalled else None

    return watch


def test_a_command_that_computes_is_not_ended(stalled):
    assert stalled(lambda _: {}) == 60
    assert stalled(lambda now: {1: 0.05 * now}) == 60
    assert stalled(lambda now: {1: 0.2 * now}) is None
    assert stalled(lambda now: {1: 0.06 * now, 2: 0.06 * now}) is None
    assert 300 < stalled(lambda now: {1: min(now, 300)}) <= 360


def test_a_busy_command_is_not_ended_when_another_process_ends_that_has_worked(stalled):
    assert stalled(lambda now: {1: 500.0, 2: now} if now < 30 else {2: now}) is None
    assert stalled(lambda now: {1: 500.0} if now < 30 else {}) == 60


def test_the_cpu_time_of_a_child_grows_while_it_computes(own_processes):
    program = "import time; input(); end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        before = downloads.cpu_seconds()[process.pid]
        process.stdin.write(b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 300
        while downloads.cpu_seconds()[process.pid] < before + 0.25:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.communicate(b"\n")
    assert process.pid not in downloads.cpu_seconds()


@pytest.fixture
def earlier():
    """A process that another test has left."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_processes_of_earlier_tests_go_on(earlier, impatient, tmp_path):
    assert run(tmp_path, "import time; time.sleep(300)").stalled
    assert earlier.poll() is None


def test_progress_has_a_percentage_if_the_size_is_known(own_processes, tmp_path, monkeypatch):
    messages, reported = [], threading.Event()
    monkeypatch.setattr(downloads, "PROGRESS", 0.2)

    def keep(message):
        messages.append(message)
        if "(" in message:
            reported.set()

    monkeypatch.setattr(downloads, "print_msg", keep)

    def slowly(handler, ended):
        whole(handler, ended, CONTENT[:64000])
        reported.wait(LONG)
        handler.wfile.write(CONTENT[64000:])

    with server(slowly) as url:
        downloads.fetch_url(url, str(tmp_path / "file.gz"))
    assert any(message.startswith("file.gz: 0 of 0 MB (") for message in messages)
    assert (tmp_path / "file.gz").read_bytes() == CONTENT

"""The documentation site in a browser: its pages on a desktop and a phone, and the search for an error message."""

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from testbed import layout as testbed_layout
from testbed import packages

pytestmark = pytest.mark.thorough

SIZES = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
}
#: It runs as root in containers, and asks no server of its maker.
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]
#: Elements that lie right of the window, although no frame of theirs scrolls or cuts them.
TOO_WIDE = """() => {
  const cut = element => element.closest("body") !== element &&
    (getComputedStyle(element).overflowX !== "visible" || cut(element.parentElement));
  return [...document.querySelectorAll("article *")]
    .filter(element => element.getBoundingClientRect().right > innerWidth + 1 && !cut(element))
    .map(element => element.outerHTML.slice(0, 80));
}"""


@pytest.fixture(scope="module")
def address(site):
    """Serves the site as a plain web server does; its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, driven by Playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    layout = testbed_layout.Layout.from_environment(os.environ)
    layout.claim()
    obstacle = packages.install_optional(layout, packages.BROWSER_PACKAGES)
    if obstacle:
        pytest.skip(obstacle)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=packages.find_command("chromium"), args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, address):
    """Open pages of the site in a window; at the end, the browser may not have reported an error."""
    contexts = []
    errors = []

    def stay_here(route):
        if route.request.url.startswith(address):
            route.continue_()
        else:
            errors.append(f"loads {route.request.url}")
            route.abort()

    def open_window(size):
        context = chromium.new_context(**SIZES[size], base_url=address)
        contexts.append(context)
        context.set_default_timeout(300_000)  # ms; the default is 30 s
        context.route("**/*", stay_here)
        window = context.new_page()
        window.on("pageerror", lambda error: errors.append(f"{window.url}: {error}"))
        window.on("console", lambda line: line.type == "error" and errors.append(f"{window.url}: {line.text}"))
        window.on("response", lambda answer: answer.ok or errors.append(f"{answer.status} {answer.url}"))
        return window

    yield open_window
    for context in contexts:
        context.close()
    assert errors == []


@pytest.mark.parametrize("size", SIZES)
def test_every_page_fits_its_window_and_shows_its_pictures(visit, site, size):
    window = visit(size)
    faults = []
    for page in sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html")):
        window.goto(page)
        width = window.evaluate("document.documentElement.scrollWidth")
        if width > SIZES[size]["viewport"]["width"]:
            faults.append(f"{page}: {width} pixels wide")
        faults += [f"{page}: too wide: {element}" for element in window.evaluate(TOO_WIDE)]
        faults += window.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
    assert faults == []


class Pasted(NamedTuple):
    """A line of a log, and a part of the title of its section in docs/troubleshooting.md."""

    line: str
    section: str


ERRORS = [
    Pasted(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "39.39 GiB of which 1.21 GiB is free. Of the allocated memory 35.48 GiB is allocated by PyTorch, and 1.73 GiB "
        "is reserved by PyTorch but unallocated.",
        "CUDA out of memory",
    ),
    Pasted("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB.", "HIP out of memory"),
    Pasted(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1234567.0. Some of the step tasks", "oom_kill event"
    ),
    Pasted("srun: error: nid005123: task 3: Out Of Memory", "oom_kill event"),
    Pasted("failed (exitcode: -9) local_rank: 0 (pid: 1234) of binary: /usr/bin/python", "exitcode: -9"),
    Pasted(
        "RuntimeError: DataLoader worker (pid 12345) is killed by signal: Bus error.", "DataLoader worker is killed"
    ),
    Pasted("OSError: [Errno 24] Too many open files: '/scratch/me/0001.pt'", "Too many open files"),
    Pasted("OSError: [Errno 28] No space left on device", "[Errno 28]"),
    Pasted("OSError: [Errno 122] Disk quota exceeded: '/users/me/.cache/huggingface'", "[Errno 122]"),
    Pasted("OSError: [Errno 30] Read-only file system: '/opt/conda/lib'", "Read-only file system"),
    Pasted(
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, "
        "but not set",
        "RANK expected, but not set",
    ),
    Pasted(
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "The server socket has failed to listen",
    ),
    Pasted("OSError: [Errno 98] Address already in use", "Address already in use"),
    Pasted(
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
        "(nid001234, 29500).",
        "The client socket has timed out",
    ),
    Pasted(
        "RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error", "connectFullMesh"
    ),
    Pasted("[pair.cc:534] Connection closed by peer [10.1.0.12]:38211", "Connection closed by peer"),
    Pasted("[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "Timed out waiting"),
    Pasted("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:", "ChildFailedError"),
    Pasted(
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.",
        "ncclSystemError",
    ),
    Pasted("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000", "Duplicate GPU detected"),
    Pasted(
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1523, OpType=ALLREDUCE, "
        "NumelIn=25557032, Timeout(ms)=600000) ran for 600046 milliseconds before timing out.",
        "Watchdog caught collective",
    ),
    Pasted("torch.AcceleratorError: CUDA error: invalid device ordinal", "CUDA error: invalid device ordinal"),
    Pasted("RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver on your system"),
    Pasted("RuntimeError: No CUDA GPUs are available", "No CUDA GPUs are available"),
    Pasted("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no kernel image"),
    Pasted("AssertionError: Torch not compiled with CUDA enabled", "Torch not compiled with CUDA"),
    Pasted("ModuleNotFoundError: No module named 'torch'", "No module named 'torch'"),
    Pasted("RuntimeError: operator torchvision::nms does not exist", "torchvision::nms"),
    Pasted("SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')", "CERTIFICATE_VERIFY_FAILED"),
    Pasted(
        "slurmstepd: error: *** STEP 1234.0 ON nid001001 CANCELLED AT 2026-11-28T12:00:00 DUE TO TIME LIMIT ***",
        "TIME LIMIT",
    ),
    Pasted("srun: Job 1234 step creation temporarily disabled, retrying (Requested nodes are busy)", "nodes are busy"),
    Pasted("sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification", "(gres)"),
    Pasted("slurmstepd: error: execve(): conda-python-distributed: No such file or directory", "execve()"),
    Pasted("bash: line 1: conda-python-distributed: command not found", "command not found"),
    Pasted(
        "slurmstepd: error: couldn't chdir to `/scratch/me': No such file or directory: going to /tmp instead", "chdir"
    ),
    Pasted(
        "FATAL:   container creation failed: mount hook function failure: mount /etc/pki->/etc/pki error: while "
        "mounting /etc/pki: mount source /etc/pki doesn't exist",
        "mount source ... doesn't exist",
    ),
    Pasted('FATAL:   "conda-python-distributed": executable file not found in $PATH', "executable file not found"),
    Pasted("FATAL:   image format not recognized", "image format not recognized"),
    Pasted("fuse: failed to open /dev/fuse: Permission denied", "/dev/fuse"),
    Pasted(
        'Lmod has detected the following error: The following module(s) are unknown: "PyTorch/2.13.0-cpu-singularity"',
        "module(s) are unknown",
    ),
    Pasted(
        "ERROR: Lock /apps/software/.locks/_apps_PyTorch.lock already exists, aborting!", "already exists, aborting"
    ),
]
#: The title of the first section in the first hit, if it is one of this page.
FIRST_HIT = """() => document.querySelector(
  '.md-search-result__item:first-child a[href*="/docs/troubleshooting.html"][href*="#"] :is(h1, h2)')?.textContent"""


def test_a_pasted_error_finds_its_section_first(visit):
    window = visit("desktop")
    faults = []
    window.goto("index.html")
    box = window.locator(".md-search__input")
    for error in ERRORS:
        box.fill("")
        box.press("End")  # the theme listens to keys
        window.wait_for_selector(".md-search-result__item", state="detached")
        box.fill(error.line)
        box.press("End")
        window.wait_for_selector(".md-search-result__item")
        title = window.evaluate(FIRST_HIT)
        if error.section not in (title or ""):
            faults.append(f"{error.line}: {title}")
    assert not faults, "\n".join(faults)

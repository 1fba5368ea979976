"""The documentation site in a browser: its pages on a desktop and a phone."""

import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

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
    contexts, errors = [], []

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
    window, faults = visit(size), []
    for page in sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html")):
        window.goto(page)
        width = window.evaluate("document.documentElement.scrollWidth")
        if width > SIZES[size]["viewport"]["width"]:
            faults.append(f"{page}: {width} pixels wide")
        faults += [f"{page}: too wide: {element}" for element in window.evaluate(TOO_WIDE)]
        faults += window.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
    assert faults == []

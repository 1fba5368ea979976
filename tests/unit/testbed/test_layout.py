"""The testbed's locks: its parts are independent, and the lock of the testbed waits for all of them."""

import threading
from pathlib import Path

import pytest

from testbed.layout import Layout


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path)
    layout.claim()
    return layout


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [("container", "venv", False), ("venv", "venv", True), ("venv", None, True), (None, "venv", True)],
)
def test_the_lock_of_a_part_excludes_itself_and_the_whole(layout, held, wanted, waits):
    entered = threading.Event()

    def enter():
        with layout.locked(wanted):
            entered.set()

    thread = threading.Thread(target=enter)
    with layout.locked(held):
        thread.start()
        assert entered.wait(0.3 if waits else 300) is not waits
    thread.join(300)
    assert entered.is_set()


def test_two_processes_can_claim_a_directory_at_the_same_time(layout, monkeypatch):
    """As ./run-tests does on a fresh machine."""
    list_files = Path.iterdir

    def list_after_the_other(path):
        layout.marker.touch()
        return list_files(path)

    layout.marker.unlink()
    for directory in layout.root.iterdir():
        directory.rmdir()
    monkeypatch.setattr(Path, "iterdir", list_after_the_other)
    layout.claim()

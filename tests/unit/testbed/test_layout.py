"""The testbed's locks: its parts are independent, and the lock of the testbed waits for all of them."""

import threading

import pytest

from testbed.layout import Layout


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [("container", "venv", False), ("venv", "venv", True), ("venv", None, True), (None, "venv", True)],
)
def test_the_lock_of_a_part_excludes_itself_and_the_whole(tmp_path, held, wanted, waits):
    layout, entered = Layout(tmp_path), threading.Event()
    layout.claim()

    def enter():
        with layout.locked(wanted):
            entered.set()

    thread = threading.Thread(target=enter)
    with layout.locked(held):
        thread.start()
        assert entered.wait(0.3 if waits else 300) is not waits
    thread.join(300)
    assert entered.is_set()

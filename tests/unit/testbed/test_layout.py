"""The testbed's directory, and its locks: parts are independent, the lock of the testbed waits for all of them."""

import os
import threading

import pytest

from testbed.layout import LONGEST_ROOT, Layout
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests
from testbed.lifecycle import up


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [("container", "venv", False), ("venv", "venv", True), ("venv", None, True), (None, "venv", True)],
)
def test_the_lock_of_a_part_excludes_itself_and_the_whole(tmp_path, held, wanted, waits):
    layout = Layout(tmp_path)
    entered = threading.Event()
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


@pytest.mark.parametrize(("name", "act"), [("a b", Layout.claim), ("x" * LONGEST_ROOT, up)])
def test_a_path_that_slurm_cannot_express_is_an_error(tmp_path, name, act):
    with pytest.raises(Error, match="Set PYTORCH_TESTBED to"):
        act(Layout(tmp_path / name))
    assert os.listdir(tmp_path) == []

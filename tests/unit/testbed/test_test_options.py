"""The options of tests/conftest.py."""

import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[3]
SLOW, QUICK = (f"tests/unit/runscripts/test_{name}.py" for name in ("claim", "shell"))


def pytest(*arguments):
    """Run pytest on the tree; return its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout


def test_fast_leaves_out_slow_files():
    assert SLOW in pytest("--collect-only", SLOW, QUICK)
    fast = pytest("--collect-only", "--fast", SLOW, QUICK)
    assert QUICK in fast
    assert SLOW not in fast
    assert "deselected" in fast


def test_fast_leaves_out_modules_in_tcl_syntax():
    easyblock = "tests/unit/easyblocks/test_pytorchshifter.py"
    everything, fast = pytest("--collect-only", easyblock), pytest("--collect-only", "--fast", easyblock)
    assert "[Lua" in everything and "[Tcl" in everything
    assert "[Lua" in fast and "[Tcl" not in fast


def test_a_run_can_end_with_a_table_of_its_slowest_tests():
    lines = pytest("--slowest=1", QUICK).splitlines()
    header = lines.index("seconds  in fixtures  test")
    assert QUICK.removeprefix("tests/") in lines[header + 1]
    assert QUICK.removeprefix("tests/") not in lines[header + 2]

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


def test_fast_leaves_out_slow_files_and_slow_tests_of_others():
    lists = "tests/unit/runscripts/test_nodelist.py"
    everything = pytest("--collect-only", SLOW, QUICK, lists)
    fast = pytest("--collect-only", "--fast", SLOW, QUICK, lists)
    assert QUICK in fast and f"{lists}::test_hosts_are_made_one_by_one" in fast
    for slow in (SLOW, f"{lists}::test_random_lists"):
        assert slow in everything and slow not in fast
    assert "deselected" in fast


def test_a_run_can_end_with_a_table_of_its_slowest_tests():
    lines = pytest("--slowest=1", QUICK).splitlines()
    header = lines.index("seconds  in fixtures  test")
    assert QUICK.removeprefix("tests/") in lines[header + 1]
    assert QUICK.removeprefix("tests/") not in lines[header + 2]

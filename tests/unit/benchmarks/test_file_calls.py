"""Counting calls that name files."""

import pytest

from benchmarks import file_calls
from benchmarks.file_calls import count_calls, count_file_calls
from benchmarks.session import Session
from testbed.layout import TestbedError as Error  # pytest would take it for a class of tests

TRACE = """\
12 openat(AT_FDCWD, "/shared/lib/torch.py", O_RDONLY) = 3
12 newfstatat(3, "/shared", {st_mode=S_IFDIR}) = 0
13 readlink("/shared2/x", 0x7ffd, 4096) = -1 ENOENT (No such file or directory)
13 stat("/shared/scratch/here", 0x7ffd) = -1 ENOENT (No such file or directory)
12 +++ exited with 0 +++
"""


def test_calls_below_a_directory_count_and_those_in_the_scratch_directory_do_not():
    assert count_calls(TRACE, ["/shared"], "/shared/scratch") == 2


def test_without_strace_the_error_reports_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(file_calls, "find_optional", lambda _: None)
    with pytest.raises(Error, match="apt-get install strace"):
        count_file_calls(Session(None, tmp_path), {}, [], ["true"], below=["/"], ranks=1)

"""The slow network file system of the testbed: what it forwards, counts and delays."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.cluster import slow_fs
from testbed.layout import TestbedError

#: A node's mount namespace; an ordinary user gets one like testbed/cluster/node.
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
FILES = {"empty": 0, "small": 10, "package/large": 3_000_000, **{f"package/{n:03}": n for n in range(300)}}

needs_fuse = pytest.mark.skipif(bool(slow_fs.obstacle()), reason=str(slow_fs.obstacle()))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return slow_fs.build(tmp_path_factory.mktemp("slow-fs"))


@pytest.fixture
def node():
    """A function that starts a process in a mount namespace of its own, and returns its id."""
    with contextlib.ExitStack() as stack:

        def start():
            process = stack.enter_context(subprocess.Popen([*UNSHARE, "sleep", "infinity"]))
            stack.callback(process.kill)
            own = Path("/proc/self/ns/mnt").stat().st_ino
            while Path(f"/proc/{process.pid}/ns/mnt").stat().st_ino == own:
                assert process.poll() is None, "no mount namespaces here"
                time.sleep(0.01)
            return process.pid

        yield start


@pytest.fixture
def tree(tmp_path):
    """A directory with files, and a link."""
    for name, size in FILES.items():
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(size))
    (tmp_path / "tree" / "link").symlink_to("small")
    return tmp_path / "tree"


def run_on(pid, *command):
    """Run a command as a process of a node; return its output."""
    user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
    entry = ["nsenter", f"--target={pid}", "--mount", *user, "--"]
    return subprocess.run([*entry, *map(str, command)], check=True, capture_output=True, text=True, timeout=300).stdout


def stat_names(pid, names):
    """Look names up as a process of a node; return the seconds."""
    code = """if True:
        import os, sys, time
        start = time.monotonic()
        for name in sys.argv[1:]:
            os.path.exists(name)
        print(time.monotonic() - start)"""
    return float(run_on(pid, sys.executable, "-IS", "-c", code, *names))


@needs_fuse
def test_all_bytes_are_forwarded_and_the_mount_ends_with_the_block(program, node, tree, tmp_path):
    pid, server = node(), slow_fs.Server(tmp_path / "server")
    with slow_fs.mount(program, server, tree, pid=pid, cache="nfs", calls_per_second=10**6):
        shutil.copytree(tree, tmp_path / "plain", symlinks=True)
        run_on(pid, "cp", "-a", tree, tmp_path / "copy")
        assert "slow_fs" in run_on(pid, "cat", "/proc/self/mounts")
        assert "slow_fs" not in Path("/proc/self/mounts").read_text()
        with pytest.raises(subprocess.CalledProcessError):
            run_on(pid, "touch", tree / "new")
        assert server.counts().bytes == sum(FILES.values())
    subprocess.run(["diff", "-r", "--no-dereference", tmp_path / "plain", tmp_path / "copy"], check=True)
    assert len(list((tmp_path / "copy").rglob("*"))) == len(FILES) + 2
    assert "slow_fs" not in run_on(pid, "cat", "/proc/self/mounts")


@needs_fuse
def test_calls_of_two_nodes_wait_for_one_server(program, node, tree, tmp_path):
    server, names = slow_fs.Server(tmp_path / "server"), [tree / f"missing-{n}" for n in range(100)]
    with contextlib.ExitStack() as stack:
        pids = [node(), node()]
        for pid in pids:
            stack.enter_context(slow_fs.mount(program, server, tree, pid=pid, cache="none", calls_per_second=400))
        first = server.counts().calls
        start = time.monotonic()
        lone = stat_names(pids[0], names)
        assert server.counts().calls - first in range(100, 103)  # and of the directory
        assert lone >= 0.25
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda pid: stat_names(pid, names), pids))
        assert server.counts().calls - first in range(300, 309)
        assert time.monotonic() - start >= 0.75  # as if all had been made one after the other


@needs_fuse
def test_attributes_that_do_not_change_are_kept_twice_as_long_each_time(program, node, tree, tmp_path, monkeypatch):
    brief = {**slow_fs.CACHES["nfs"], "file-attributes": 0.1, "most-attributes": 0.8}
    monkeypatch.setitem(slow_fs.CACHES, "brief", brief)
    code = """if True:
        import os, sys, time
        end = time.monotonic() + 2
        while time.monotonic() < end:
            os.stat(sys.argv[1])"""
    pid, server = node(), slow_fs.Server(tmp_path / "server")
    with slow_fs.mount(program, server, tree, pid=pid, cache="brief"):
        run_on(pid, sys.executable, "-IS", "-c", code, tree / "small")
        # the look-up, then at most after 0.1, 0.3, 0.7 and 1.5 s; every 0.1 s would be 20 times
        assert server.counts().calls in range(2, 9)


@needs_fuse
def test_the_kernel_answers_again_as_an_nfs_client_does_or_not_at_all(program, node, tree, tmp_path):
    names = [tree / "missing", tree / "small", tree / "package"] * 10
    calls = {}
    for cache in slow_fs.CACHES:
        pid, server = node(), slow_fs.Server(tmp_path / cache)
        with slow_fs.mount(program, server, tree, pid=pid, cache=cache):
            stat_names(pid, names)
            calls[cache] = server.counts().calls
    assert calls["nfs"] in range(3, 6)
    assert calls["none"] in range(30, 36)


@needs_fuse
def test_reads_wait_for_the_bandwidth(program, node, tree, tmp_path):
    pid, server = node(), slow_fs.Server(tmp_path / "server")
    with slow_fs.mount(program, server, tree, pid=pid, cache="nfs", bytes_per_second=10**7):
        shutil.copy(tree / "package" / "large", tmp_path / "plain")
        start = time.monotonic()
        run_on(pid, "cmp", tree / "package" / "large", tmp_path / "plain")
        assert time.monotonic() - start >= 0.3
        run_on(pid, "cmp", tree / "package" / "large", tmp_path / "plain")  # in the node's memory
        assert server.counts().bytes == 3_000_000


def test_a_machine_without_fuse_gets_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(slow_fs, "PACKAGES", ())
    monkeypatch.setattr(slow_fs, "DEVICE", tmp_path / "fuse")
    assert slow_fs.obstacle() == f"{tmp_path}/fuse cannot be opened (No such file or directory), which FUSE needs"
    with pytest.raises(TestbedError, match="No slow file system: .*/fuse cannot be opened"):
        slow_fs.build(tmp_path)

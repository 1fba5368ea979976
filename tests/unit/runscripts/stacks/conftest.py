"""Builds what `pytorch-stacks` reads: processes in a tree of /proc, a py-spy with given answers."""

import json
import os

import pytest
from programs import program


@pytest.fixture
def proc(tmp_path):
    """A function that adds a process to a tree of /proc, and returns the tree's root."""

    def add(pid, *, parent=1, started=100, exe="/usr/bin/python3.11", maps="", **env):
        place = tmp_path / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "environ").write_bytes("".join(f"{name}={value}\0" for name, value in env.items()).encode())
        (place / "stat").write_text(f"{pid} (a (name) b) S {parent} " + "0 " * 17 + f"{started} 0 0")
        (place / "exe").symlink_to(exe)
        (place / "maps").write_text(maps)
        return str(tmp_path)

    return add


@pytest.fixture
def py_spy(tmp_path, monkeypatch):
    """A function that puts a py-spy on PATH which runs this shell code; its own process has the number of `pid`."""

    def make(code):
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        script = f"read -r -d '' threads <<'E' || :\n{_threads()}\nE\n{code}"
        return program(tmp_path / "bin" / "py-spy", script, "/bin/bash")

    return make


def _threads():
    frame = {"name": "f", "filename": "/t.py", "line": 3, "module": None, "locals": None}
    worker = {"pid": 1, "os_thread_id": 1, "thread_name": "pin", "frames": [{**frame, "line": 9}]}
    return json.dumps([worker, {**worker, "os_thread_id": os.getpid(), "thread_name": "MainThread", "frames": [frame]}])

"""The rows on the container module, with programs that replace `eb`, the script, and mmdebstrap."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

from benchmarks.installs import PARTS, install_image
from benchmarks.session import PROGRAMS
from testbed.recipes import CONTAINER, module


class Site:
    """Replaces a Session: `eb` writes a script, and an image unless one is there; it keeps the latter."""

    layout = SimpleNamespace(easybuild=Path("/easybuild"))

    def __init__(self, scratch):
        self.scratch = scratch
        self.commands = []

    def environment(self, *_commands):
        """The variables of a login."""
        return {"PATH": os.environ["PATH"]}

    def time(self, command, _env):
        """Run a command at once: 60 s for a new image, 90 s for the script, 7 s for an image that is kept."""
        self.commands.append([str(word) for word in command])
        if "--fetch" in self.commands[-1]:
            return 1.0
        if command[0] != "eb":
            return 90.0
        root = self.scratch / "installation" / "software" / module(CONTAINER)
        kept = (root / "image").exists()
        before = root.with_name("before")
        root.mkdir(parents=True, exist_ok=True)
        root.rename(before)
        root.mkdir()
        if kept:
            (root / "image").hardlink_to(before / "image")
        else:
            (root / "image").write_bytes(bytes(1000))
        (root / "script").write_bytes(bytes(10))
        for path in before.iterdir():
            path.unlink()
        before.rmdir()
        modules = self.scratch / "installation" / "modules" / "all" / f"{module(CONTAINER)}.lua"
        modules.parent.mkdir(parents=True, exist_ok=True)
        modules.touch()
        return 7.0 if kept else 60.0


def test_eb_installs_from_a_copy_of_the_tree_in_which_a_runscript_changes(tmp_path):
    site = Site(tmp_path)
    rounds = install_image(site)
    for _ in range(2):  # by hand, and a rebuild, against one installation from scratch; a kept image is the same file
        assert next(rounds) == ((60.0, 90.0), (7.0, 60.0), (10, 1010))
    assert (tmp_path / "tree" / "runscripts" / "get-master").read_text().count("# changed") == 2
    assert {path.name for path in (tmp_path / "tree").iterdir()} == PARTS
    fetch, install = site.commands[:2]  # sources are downloaded, and one installation comes before the clock
    assert fetch[:3] == install[:3] == ["eb", f"{CONTAINER}.eb", "--rebuild"]
    assert "--fetch" in fetch
    assert "--fetch" not in install


def test_a_base_system_is_bootstrapped_by_the_first_call_and_copied_by_others(tmp_path):
    real, stand_in = tmp_path / "real" / "mmdebstrap", tmp_path / "bin" / "mmdebstrap"
    for path in (real, stand_in):
        path.parent.mkdir()
    real.write_text('#!/bin/sh\necho called >>"$CALLS"\necho "$1" >"$4"\n')
    real.chmod(0o755)
    stand_in.symlink_to(PROGRAMS / "bootstrap-once")
    env = {"BASE_SYSTEM": str(tmp_path / "base.tar"), "CALLS": str(tmp_path / "calls")}
    env["PATH"] = f"{stand_in.parent}:{real.parent}:{os.environ['PATH']}"
    for name in ("one.tar", "two.tar"):
        command = ["mmdebstrap", "--quiet", "--include=a", "bookworm", tmp_path / name, "sources"]
        subprocess.run(command, env=env, check=True)
        assert (tmp_path / name).read_text() == "--quiet\n"
    assert (tmp_path / "calls").read_text() == "called\n"

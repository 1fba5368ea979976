"""An installation with user-software in a directory of the test, and stand-ins for what packs and mounts it."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]

#: What the commands call, except for stand-ins: they see no other program.
PROGRAMS = ("bash", "cp", "cut", "du", "flock", "kill", "ln", "mkdir", "mv", "nproc", "rm", "tar", "touch")

MKSQUASHFS = """#!/bin/bash
[[ $1 = -* ]] || tar -cf "$2" -C "$1" .
"""

#: `singularity exec --bind <binds> <image> <command>`: unpacks the file that would be mounted, and stays on the host.
SINGULARITY = f"""#!{sys.executable}
import re, subprocess, sys, tarfile, tempfile
binds, image, *command = sys.argv[3:]
with tempfile.TemporaryDirectory() as mount:
    for source, target, packed in re.findall(r"([^,:]+):(/[a-z-]+)(:ro,image-src=/)?", binds):
        if packed:
            tarfile.open(source).extractall(mount)
            source = mount
        command = [word.replace(target, source) for word in command]
    sys.exit(subprocess.call(command))
"""


class Installation:
    """One module's installation, with packages in its user-software."""

    def __init__(self, directory):
        self.root = directory / "PyTorch" / "1.0"
        self.store = self.root.parent / ".user-software"
        self.directory = self.store / "1.0"
        self.packed = self.store / "1.0.squashfs"
        self.programs = directory / "programs"
        self.failing = directory / "failing"
        for part in ("bin", "libexec", "runscripts"):
            shutil.copytree(TREE / part, self.root / part)
        (self.root / "image.sif").touch()
        (self.root / "bin" / "unmake-squashfs").symlink_to("make-squashfs")
        self.failing.mkdir()
        self.programs.mkdir()
        for name in PROGRAMS:
            (self.programs / name).symlink_to(shutil.which(name))
        self.program("mksquashfs", MKSQUASHFS)
        self.program("singularity", SINGULARITY)
        self.program("sync", "#!/bin/bash\n")  # the real one would wait for all that is written on this machine
        packages = self.directory / "venv" / "pytorch" / "lib"
        packages.mkdir(parents=True)
        (packages / "module.py").write_text("value = 1\n")
        (packages / "link").symlink_to("module.py")
        (packages / "empty").mkdir()

    def program(self, name, text, directory=None):
        """Put an executable on the commands' search path."""
        path = (directory or self.programs) / name
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *command, **variables):
        """Run one of the commands with the module loaded, in a process group of its own."""
        module = {"EBROOTPYTORCH": str(self.root), "SIFPYTORCH": str(self.root / "image.sif")}
        env = {"PATH": f"{self.failing}:{self.programs}", **module, **variables}
        options = {"start_new_session": True, "capture_output": True, "text": True, "timeout": 300, "check": False}
        return subprocess.run([str(self.root / "bin" / command[0]), *command[1:]], env=env, **options)

    def in_use(self):
        """Files of what a module that is loaded now would mount: path -> content."""
        if self.packed.is_file() and not (self.directory / ".unpacked").is_file():
            with tarfile.open(self.packed) as archive:
                members = [member for member in archive if not member.isdir() and member.name != "./.unpacked"]
                texts = {member.name: archive.extractfile(member).read().decode() for member in members}
                return {os.path.normpath(name): text for name, text in texts.items()}
        paths = [path for path in self.directory.rglob("*") if path.is_file() and path.name != ".unpacked"]
        return {str(path.relative_to(self.directory)): path.read_text() for path in paths}

    def left(self):
        """Names of what is in the store, but for the lock."""
        return {path.name for path in self.store.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def installation(tmp_path):
    """An installation of this test."""
    return Installation(tmp_path)

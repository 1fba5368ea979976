"""Installations in a directory of the test, with stand-ins for what packs, mounts and starts their images."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from repository import TREE

#: What the commands call, except for stand-ins: they see no other program.
PROGRAMS = (
    "bash",
    "chmod",
    "cp",
    "cut",
    "du",
    "flock",
    "kill",
    "ln",
    "mkdir",
    "mktemp",
    "mv",
    "nproc",
    "rm",
    "tar",
    "touch",
)

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


def files_below(directory):
    """Return the files of a directory, without the one that make-squashfs keeps there: path -> content."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != ".unpacked"]
    return {str(path.relative_to(directory)): path.read_text() for path in files}


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
        if not self.packed.is_file() or (self.directory / ".unpacked").is_file():
            return files_below(self.directory)
        with tempfile.TemporaryDirectory() as mount:
            shutil.unpack_archive(self.packed, mount, "tar")
            return files_below(Path(mount))

    def left(self):
        """Names of what is in the store, but for the lock."""
        return {path.name for path in self.store.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def installation(tmp_path):
    """An installation of this test."""
    return Installation(tmp_path)


#: A runtime without an image: reports the process that it is and its arguments, then starts the command.
RUNTIME = """#!/bin/bash
printf '%s\\n' $$ "${0##*/}" "${@:1:4}"
export APPTAINER_CONTAINER=$4 PATH=${0%/*}:/usr/bin:/bin # an image has its own
shift 4
exec "$@"
"""


class Installed:
    """An installation, and a runtime; the commands' working directory is `work`."""

    def __init__(self, directory):
        self.root = directory / "the root"
        self.work = directory / "work"
        self.runtime = directory / "runtime"
        self.user_software = directory / "store" / "1.0"
        for part in ("libexec", "runscripts"):
            shutil.copytree(TREE / part, self.root / part, ignore=shutil.ignore_patterns("pytorch_*"))
        for place in (self.root / "bin", self.root / "payload", self.work, self.runtime, self.user_software):
            place.mkdir(parents=True)
        self.image = self.root / "image of the module.sif"
        self.image.touch()
        (self.root / "libexec" / "installation.bash").write_text(
            f"engine=apptainer image='{self.image.name}' user_software='{self.user_software}'\n"
            f"packages=.local/mine-1234 binds=(/usr /nowhere)\n"
            f"files=(PIP_CERT) gpu=cuda runtime='{self.runtime}/singularity'\n"
        )
        (self.runtime / "singularity").write_text(RUNTIME)
        (self.runtime / "singularity").chmod(0o755)
        self.loaded = {"CONTAINERROOT": str(self.root), "SIFPYTORCH": str(self.image)}
        self.loaded["APPTAINER_BINDPATH"] = "/x:/runscripts"

    def start(self, command, *arguments, cwd=None, path=None, **variables):
        """Start a command of the module's bin/; return the process."""
        link = self.root / "bin" / command
        if not link.is_symlink():
            link.symlink_to("../libexec/enter")
        env = {"PATH": path or f"{link.parent}:{self.runtime}:/usr/bin:/bin", "HOME": str(self.work), **variables}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([link, *arguments], env=env, text=True, cwd=cwd or self.work, **pipes)

    def environment(self, expected_errors="", **variables):
        """The variables of a command in the image, by their names."""
        rank = self.start("env", "-0", **variables)
        output, errors = rank.communicate()
        assert (rank.returncode, errors) == (0, expected_errors)
        return dict(entry.split("=", 1) for entry in output.split("\n", 6)[6].split("\0") if entry)


@pytest.fixture
def installed(tmp_path):
    """An installation of this test."""
    return Installed(tmp_path)

"""An EasyBuild prefix with one recipe for the tests of images, and functions that create and damage files."""

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from easybuild_prefix import EasyBuildPrefix

from testbed.stand_ins.registry import ENVIRONMENT


class Site(EasyBuildPrefix):
    """A prefix with a recipe whose lines come from the test, and a central directory of images."""

    def __init__(self, testbed, directory):
        super().__init__(testbed, directory, version="2.13.0", suffix="-test")
        self.central = directory / "central"
        self.sources = directory / "sources"
        self.images = self.sources / "p" / "PyTorch" / "images"
        self.central.mkdir()

    def eb(self, lines, options="", *, environ=None, settings=""):
        """Run EasyBuild on the recipe with these lines, after shell `settings`; return the completed process."""
        self.write("EB_PyTorchContainer", lines)
        # EasyBuild keeps files of failures below --tmpdir
        command = self.command(f"--sourcepath={self.sources} --tmpdir={self.directory}/temporary", options)
        environ = {**os.environ, **ENVIRONMENT, **(environ or {})}
        return self.testbed.run_unchecked(f"{settings}\n{command}", environ=environ, timeout=3600)

    def install(self, lines, options="", **keywords):
        """Run EasyBuild, which must succeed; return its output."""
        result = self.eb(lines, options, **keywords)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    def refuse(self, lines, options="", **keywords):
        """Run EasyBuild, which must fail with one line of error and leave no files; return the line."""
        before = self.module_files()
        result = self.eb(lines, options, **keywords)
        assert result.returncode != 0, result.stdout
        errors = [line for line in result.stdout.splitlines() + result.stderr.splitlines() if line.startswith("ERROR")]
        assert len(errors) == 1, result.stdout + result.stderr
        assert self.module_files() == before
        assert not [path for path in (self.directory / "software").rglob("*.sif*") if path.is_file()]
        assert not list(self.directory.rglob("*.part"))
        return errors[0]

    def module_files(self):
        """Return the modulefiles that users see."""
        return sorted((self.directory / "modules").rglob("*2.13.0-test*"))

    def shell(self, script, *, settings=":"):
        """Run a script with the module loaded, after shell `settings`; return the completed process."""
        return self.testbed.run_unchecked(f"{settings}\n{self.load} || exit 9\n{script}")

    def record(self):
        """Return the record of the installed image."""
        return json.loads((self.installation / "provenance" / "image.json").read_text())


def make_layer(path, size):
    """Create a layer with one incompressible file of the layer's name; return its path."""
    content = path.with_suffix(".content")
    content.write_bytes(os.urandom(size))
    with tarfile.open(path, "w") as archive:
        archive.add(content, arcname=path.name)
    return path


def write_root(root, *programs):
    """Write a root directory with programs of this host and the libraries that they need."""
    for name in ("usr/bin", "etc", "proc", "sys", "dev", "tmp", "root", "home"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for program in map(shutil.which, programs):
        libraries = re.findall(r"/\S+", subprocess.check_output(["ldd", program], text=True))
        for path in map(Path, [program, *libraries]):
            copy = root / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    return root


def flip_a_bit(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))

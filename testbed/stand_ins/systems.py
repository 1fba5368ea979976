"""Replaces what only a production system has, as little as possible, so that its recipes run on the testbed.

docs/systems.md lists for each recipe what is real and what is a stand-in.
"""

import hashlib
import os
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from testbed import recipes

HERE = Path(__file__).resolve().parent
#: The directory of torch in the CPU image.
IN_IMAGE = "/usr/local/lib/python3.11/dist-packages"
#: __init__.py of a stand-in for a package of another installation, which can find what else that one has.
BORROWED = """import sys
sys.path.append({packages!r})
__file__ = {file!r}
__path__.append({directory!r})
exec(compile(open(__file__).read(), __file__, "exec"))
"""

#: setup.py of Horovod: checks the settings of the build for NCCL, and installs Horovod of another installation.
HOROVOD_SETUP = """import os
from setuptools import setup
assert os.environ["HOROVOD_GPU_OPERATIONS"] == "NCCL" and os.path.isdir(os.environ["HOROVOD_NCCL_HOME"])
setup(name="horovod", version={version!r}, packages=["horovod", "horovod.torch"])
"""


class StandIns:
    """The stand-ins of a testbed: the CPU container and the CPU venv replace those for GPUs.

    Attributes
    ----------
    bin : Path
        Commands, for the PATH.
    modulefiles : Path
        The system's own modules, for the MODULEPATH.
    images : Path
        The system's central directory of images.
    wheels : Path
        A directory of wheels: the system's package index.
    """

    def __init__(self, layout, directory):
        software = layout.easybuild / "software"
        self.sif = software / recipes.module(recipes.CONTAINER) / f"{recipes.CONTAINER}.sif"
        self.packages = next((software / recipes.module(recipes.VENV)).glob("venv/lib/python*/site-packages"))
        self.easyconfigs = layout.repository / "easyconfigs" / "p" / "PyTorch"
        self.directory = directory
        self.bin, self.modulefiles, self.images, self.wheels = (
            directory / name for name in ("bin", "modulefiles", "images", "wheels")
        )
        for path in (self.bin, self.modulefiles, self.images, self.wheels):
            path.mkdir(parents=True)
        for command in ("shifter", "cotainr"):
            (self.bin / command).symlink_to(HERE / command)
        for command in ("enroot", "srun"):  # a loaded module may have a python3 that enters its image
            self.command(self.bin, command, f"{sys.executable} -I {HERE / command}")

    def recipe(self, name, *changes):
        """Copy a recipe with its files, replace each (old, new) of `changes` in its text; return the path of the copy.

        The copied lock has the hashes of the stand-in wheels.
        """
        directory = self.directory / name
        shutil.copytree(self.easyconfigs, directory)
        path = directory / f"{name}.eb"
        text = path.read_text()
        for old, new in changes:
            if old not in text:
                raise ValueError(f"{path} has no {old!r}")
            text = text.replace(old, new)
        for lock in directory.glob("*.txt"):
            before = sha256(lock)
            if before in text:
                lock.write_text("\n".join(self.wheel(line) for line in lock.read_text().splitlines()) + "\n")
                text = text.replace(before, sha256(lock))
        path.write_text(text)
        return path

    def image(self, name):
        """Put the CPU image into the central directory as `name`."""
        os.link(self.sif, self.images / name)

    def wheel(self, line):
        """Create a wheel for a line of a lock, unless the real one exists; return the line with its hash."""
        found = re.match(r"([a-z0-9-]+)==([^ ]+)", line)
        if not found or any(sha256(path) in line for path in self.wheels.glob(f"{found[1]}-*")):
            return line
        name, version = found.groups()
        stem = f"{name.replace('-', '_')}-{version}"
        files = {
            f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{stem}.dist-info/RECORD": "",
        }
        if name == "torch":
            files["torch/__init__.py"] = borrowed(self.packages, "torch")
            files["torch/version.py"] = self.version_text(version)
            files["stand_in.pth"] = f"{self.packages}\n"  # the packages that torch needs
        path = self.wheels / f"{stem}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in files.items():
                archive.writestr(file, text)
        return f"{name}=={version} --hash=sha256:{sha256(path)}"

    def horovod(self, real, packages):
        """Create an sdist of Horovod: the real files that the patch changes, and Horovod for CPUs of `packages`."""
        version = real.name.removeprefix("horovod-").removesuffix(".tar.gz")
        tree = self.directory / f"horovod-{version}"
        with tarfile.open(real) as archive:
            for name in ("", "horovod/torch/", "horovod/common/ops/cuda/"):
                archive.extract(f"{tree.name}/{name}CMakeLists.txt", self.directory, filter="data")
        (tree / "setup.py").write_text(HOROVOD_SETUP.format(version=version))
        for name in ("horovod", "horovod/torch"):
            (tree / name / "__init__.py").write_text(f"{borrowed(packages, name)}nccl_built = lambda: True\n")
        sdist = self.directory / real.name
        with tarfile.open(sdist, "w:gz") as archive:
            archive.add(tree, tree.name)
        return sdist

    def version_text(self, version):
        """Return the text of torch/version.py with another version."""
        text = (self.packages / "torch" / "version.py").read_text()
        return re.sub(r"(?m)^__version__ = .*", f"__version__ = {version!r}", text)

    def version(self, version):
        """Return a bind that gives torch in the CPU image another version."""
        path = self.directory / f"version-{version}.py"
        path.write_text(self.version_text(version))
        return f"{path}:{IN_IMAGE}/torch/version.py"

    def conda(self):
        """Return binds that hide the Python of the CPU image until conda in /opt/miniconda3 is activated."""
        activate = self.directory / "conda" / "bin" / "activate"
        activate.parent.mkdir(parents=True)
        activate.write_text(f"PATH={IN_IMAGE.partition('/lib/')[0]}/bin:$PATH CONDA_DEFAULT_ENV=$1\n")
        for name in ("python", "python3"):
            (activate.parents[1] / name).write_text("#!/bin/sh\necho no conda environment is active >&2; exit 1\n")
            (activate.parents[1] / name).chmod(0o755)
        hidden = self.directory / "hidden.sh"
        hidden.write_text("export PATH=/opt/miniconda3:/usr/bin:/bin\n")
        return f"{activate.parents[1]}:/opt/miniconda3,{hidden}:/.singularity.d/env/91-hidden.sh"

    def module(self, name, *directories):
        """Create a module of the system that prepends directories to the PATH."""
        path = self.modulefiles / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["#%Module", *(f"prepend-path PATH {path}" for path in directories)]) + "\n")

    def command(self, directory, name, target):
        """Create a command in a directory that runs another command; return the directory."""
        path = self.directory / directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        path.chmod(0o755)
        return path.parent


def borrowed(packages, name):
    """Return the text of __init__.py of a stand-in for a package in the directory `packages`."""
    directory = packages / name
    return BORROWED.format(packages=str(packages), file=str(directory / "__init__.py"), directory=str(directory))


def sha256(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""A packed installation of seconds: a virtual environment without torch, with the runscripts of this tree."""

import json
import subprocess
import sys
from pathlib import Path

from distributions import sha256
from repository import TREE

#: Prints its rank, whether this Python runs from the packed files, what is mounted and in which namespace: in one
#: write, as launchers mix the partial writes of ranks.
PROBE = """
import os, sys
mounts = [line.split()[0].partition('@')[0] for line in open('/proc/mounts') if ' fuse.squashfuse ' in line]
packed = os.path.exists(sys.prefix + '/../.packed')
words = [os.environ.get('RANK'), packed, *mounts, os.readlink('/proc/self/ns/mnt')]
os.write(1, f"{' '.join(map(str, words))}\\n".encode())
"""
RUNSCRIPTS = ("conda-python-distributed", "conda-python-simple", "ddp-env", "pytorch-stage")


class SmallInstallation:
    """What `packed = True` installs, at `root`; `filler` random bytes make the file large."""

    def __init__(self, root, filler=0, python=sys.executable):
        self.root = root
        self.file = root / "venv.squashfs"
        subprocess.run([python, "-m", "venv", "--without-pip", root / "venv"], check=True)
        for name in ("runscripts", "libexec"):
            subprocess.run(["cp", "-r", TREE / name, root], check=True)
        (root / "libexec" / "installation.bash").write_text("engine=packed\n")
        (root / "bin").mkdir()
        for name in RUNSCRIPTS:
            (root / "bin" / name).symlink_to(f"../runscripts/{name}")
        (root / "bin" / "python").symlink_to("../libexec/enter")
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)  # other users run it, also of a private checkout
        with (root / "filler").open("wb") as file, Path("/dev/urandom").open("rb") as source:
            file.write(source.read(filler))
        self.pack()

    def pack(self):
        """Pack it with the options of the easyblock, and record the checksum."""
        options = ["-comp", "lz4", "-no-fragments", "-all-root", "-noappend", "-no-progress"]
        marker = ["-p", ".packed f 444 0 0 true", "-e", self.file.name, "provenance"]
        subprocess.run(["mksquashfs", self.root, self.file, *options, *marker], check=True, stdout=subprocess.DEVNULL)
        (self.root / "filler").unlink()
        (self.root / "provenance").mkdir(exist_ok=True)
        record = {"file": self.file.name, "sha256": sha256(self.file), "size": self.file.stat().st_size}
        (self.root / "provenance" / "packed.json").write_text(json.dumps(record))

    @property
    def load(self):
        """Shell code that sets what its module would set."""
        return f"""export CONTAINERROOT={self.root} PYTORCH_PACKED={self.file} RUNSCRIPTS={self.root}/runscripts
export PATH={self.root}/bin:{self.root}/venv/bin:$PATH WITH_CONDA=true WITH_VENV='source {self.root}/venv/bin/activate'
"""

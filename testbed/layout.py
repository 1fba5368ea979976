"""Where everything of one testbed lives: a single directory, and who may remove it."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

#: Moves the testbed; two values are two testbeds that run side by side.
ROOT_VARIABLE = "PYTORCH_TESTBED"
NODES = tuple(f"nid{number:06d}" for number in range(1001, 1005))


class TestbedError(Exception):
    """What is wrong, where, and what to try, in one sentence for the user."""


class Layout:
    """The paths of one testbed.

    Attributes
    ----------
    root : Path
        The directory that holds all state; nothing is written outside it.
    cluster : Path
        Slurm and munge: configuration, logs, spool, sockets; gone after `stop`.
    bin : Path
        First on a user's ``PATH``: ``eb``, ``apptainer``, ``singularity``.
    easybuild : Path
        EasyBuild's prefix: sources, build, software, modules.
    """

    def __init__(self, root):
        self.root = Path(root).resolve()
        self.repository = Path(__file__).resolve().parents[1]
        self.marker = self.root / ".pytorch-testbed"
        self.cluster = self.root / "cluster"
        self.slurm_conf = self.cluster / "etc" / "slurm.conf"
        self.logs = self.cluster / "log"
        self.bin = self.root / "bin"
        self.apptainer = self.root / "apptainer"
        self.eb_venv = self.root / "eb-venv"
        self.test_venv = self.root / "test-venv"
        self.easybuild = self.root / "easybuild"
        self.temporary = self.root / "tmp"
        self.modules = self.easybuild / "modules" / "all"

    @classmethod
    def from_environment(cls, environ):
        """The testbed that `ROOT_VARIABLE` names, or the one inside this checkout."""
        return cls(environ.get(ROOT_VARIABLE) or Path(__file__).resolve().parents[1] / ".testbed")

    @property
    def identity(self):
        """A number that differs between testbeds, to keep their ports and job ids apart."""
        return int.from_bytes(hashlib.sha256(os.fsencode(self.root)).digest()[:4], "big")

    def claim(self):
        """Make the directory ours, or raise TestbedError if it is somebody else's."""
        for path, remedy in ((self.root, f"set {ROOT_VARIABLE} to another directory"), (self.repository, "move it")):
            if any(character in str(path) for character in " :,\"'\\\n"):
                raise TestbedError(
                    f"'{path}' has a space, colon, comma or quote, which bind specifications and "
                    f"Slurm's configuration cannot carry; {remedy}."
                )
        if self.root.is_dir() and not self.marker.exists() and any(self.root.iterdir()):
            raise TestbedError(
                f"{self.root} has files and is no testbed; set {ROOT_VARIABLE} to an empty or new directory."
            )
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.marker.touch()
            self.bin.mkdir(exist_ok=True)
            self.temporary.mkdir(exist_ok=True)
        except OSError as error:
            raise TestbedError(
                f"{self.root} cannot be written ({error.strerror}); set {ROOT_VARIABLE} to a directory that can."
            ) from error

    @contextlib.contextmanager
    def locked(self, part=None):
        """Hold the lock of a part of the testbed during the block, by default of the whole testbed.

        A part is "cluster", "packages", a virtual environment or a recipe. Parts are independent; the whole waits for
        all of them.
        """
        with contextlib.ExitStack() as files:
            fcntl.flock(files.enter_context(self.marker.open()), fcntl.LOCK_SH if part else fcntl.LOCK_EX)
            if part:
                own = files.enter_context((self.temporary / f"{part}.lock").open("a"))
                fcntl.flock(own, fcntl.LOCK_EX)
            yield

    def require_claim(self):
        """Raise TestbedError unless there is a testbed here."""
        if not self.marker.exists():
            raise TestbedError(f"There is no testbed in {self.root}; `up` makes one.")

    def remove(self):
        """Delete the testbed with all that was installed into it."""
        self.require_claim()
        for directory, _, _ in os.walk(self.root):
            # EasyBuild and mmdebstrap leave directories that their own owner may not write.
            Path(directory).chmod(0o700)
        shutil.rmtree(self.root)

    def link_command(self, name, target):
        """Put `target` on the testbed's PATH as `name`, replacing an older link."""
        link = self.bin / name
        new = link.with_name(f".{name}.{os.getpid()}")
        new.symlink_to(target)
        new.replace(link)

"""The paths of a testbed, all below one directory, and its locks."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from pathlib import Path

#: The testbed's directory. Testbeds in different directories run side by side.
ROOT_VARIABLE = "PYTORCH_TESTBED"
#: The name of a Unix-domain socket has at most 107 bytes (unix(7)).
LONGEST_ROOT = 107 - len("/cluster/run/munge.sock")
NODES = tuple(f"nid{number:06d}" for number in range(1001, 1005))


class TestbedError(Exception):
    """One sentence for the user: what is wrong, where, and what to do."""


class Layout:
    """The paths of one testbed.

    Attributes
    ----------
    root : Path
        Holds all state; nothing is written outside.
    cluster : Path
        Slurm and munge: configuration, logs, spool, sockets. `stop` deletes it.
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
        """A number for this testbed, from which its ports and job ids are derived."""
        return int.from_bytes(hashlib.sha256(os.fsencode(self.root)).digest()[:4], "big")

    def require_short_path(self):
        """Raise TestbedError if the cluster's sockets cannot have names below the directory."""
        if len(os.fsencode(self.root)) > LONGEST_ROOT:
            raise TestbedError(
                f"{self.root} has more than {LONGEST_ROOT} bytes, too many for the names of sockets. "
                f"Set {ROOT_VARIABLE} to a shorter path."
            )

    def claim(self):
        """Create the directory, or raise TestbedError if it holds other files."""
        for path, remedy in ((self.root, f"Set {ROOT_VARIABLE} to another directory"), (self.repository, "Move it")):
            if any(character in str(path) for character in " :,\"'\\\n"):
                raise TestbedError(
                    f"'{path}' has a space, colon, comma or quote, which binds and Slurm's configuration "
                    f"cannot express. {remedy}."
                )
        # in this order: another process, which makes the marker first, may claim the directory at the same time
        if self.root.is_dir() and any(self.root.iterdir()) and not self.marker.exists():
            raise TestbedError(
                f"{self.root} is not a testbed, and not empty. Set {ROOT_VARIABLE} to an empty or new directory."
            )
        try:
            self.root.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.marker.touch()
            self.bin.mkdir(exist_ok=True)
            self.temporary.mkdir(exist_ok=True)
        except OSError as error:
            raise TestbedError(
                f"{self.root} cannot be written ({error.strerror}). Set {ROOT_VARIABLE} to a writable directory."
            ) from error

    @contextlib.contextmanager
    def locked(self, part=None):
        """Hold the lock of a part of the testbed during the block, by default of all of it.

        A part is "cluster", "packages", a virtual environment or a recipe. Parts are independent; the lock of all waits
        for each of them.
        """
        with contextlib.ExitStack() as files:
            fcntl.flock(files.enter_context(self.marker.open()), fcntl.LOCK_SH if part else fcntl.LOCK_EX)
            if part:
                own = files.enter_context((self.temporary / f"{part}.lock").open("a"))
                fcntl.flock(own, fcntl.LOCK_EX)
            yield

    def require_claim(self):
        """Raise TestbedError unless the directory is a testbed."""
        if not self.marker.exists():
            raise TestbedError(f"No testbed in {self.root}. Create one with `up`.")

    def remove(self):
        """Delete the testbed and all that is installed in it."""
        self.require_claim()
        for directory, _, _ in os.walk(self.root):
            # EasyBuild and mmdebstrap leave directories that are read-only for their owner.
            Path(directory).chmod(0o700)
        shutil.rmtree(self.root)

    def link_command(self, name, target):
        """Link `target` as `name` into the testbed's PATH; replace an older link."""
        link = self.bin / name
        new = link.with_name(f".{name}.{os.getpid()}")
        new.symlink_to(target)
        new.replace(link)

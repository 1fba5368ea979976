"""A separate EasyBuild prefix for one recipe, and functions that end its installation in the middle."""

import shutil
import signal

from distributions import sha256, write_wheel
from easybuild_prefix import EasyBuildPrefix

#: EasyBuild hooks that kill its process group at one point.
HOOKS = """import os, signal
def die():
    os.killpg(0, signal.SIGKILL)
def {hook}
"""
#: A point at which half of the installation is there: Python reads compile_tree.py from its standard input.
INSTALLING = "pre_run_shell_cmd_hook(cmd, *_, **__): cmd[-3:-1] == ['-I', '-'] and os.path.isdir(cmd[-1]) and die()"


class Prefix(EasyBuildPrefix):
    """A prefix with a recipe that installs in seconds."""

    def __init__(self, testbed, directory, easyblock, lines):
        super().__init__(testbed, directory, suffix="-tiny")
        self.lock = directory / "software" / ".locks" / f"{str(self.installation).replace('/', '_')}.lock"
        self.write(easyblock, f"{lines}\nsanity_check_commands = ['conda-python-simple -c pass']")

    def command(self, *options):
        """Return shell code that installs; EasyBuild leads a process group, which a hook can kill."""
        command = super().command(f"--sourcepath={self.directory}/sources", *options)
        return f"PATH={self.directory}/bin:$PATH\nsetsid --wait {command}"

    def eb(self, *options):
        """Install; return the completed process."""
        return self.testbed.run_unchecked(self.command(*options))

    def works(self):
        """Return whether there is a module; assert that Python runs with it."""
        if not list(self.directory.glob(f"modules/all/{self.module}*")):
            return False
        self.testbed.run(f"PATH={self.directory}/bin:$PATH; {self.load}; conda-python-simple -c pass")
        return True

    def leftovers(self):
        """Return the files that do not belong to a complete installation."""
        kept = {".user-software", f".{self.installation.name}.replaced"}  # the latter for running containers
        hidden = [path for path in self.installation.parent.glob(".*") if path.name not in kept]
        parts = [path for top in ("software", "modules") for path in self.directory.glob(f"{top}/**/*.part")]
        return [*hidden, *parts, *self.directory.glob("software/.locks/*")]

    def builds(self):
        """Return the build directories; that of a failed installation is kept until the next one."""
        return list(self.directory.glob("build/*"))


def kill_at(prefix, hook):
    """Run ``eb --rebuild`` with a hook that kills it."""
    hooks = prefix.directory / "hooks.py"
    hooks.write_text(HOOKS.format(hook=hook))
    result = prefix.eb("--rebuild", f"--hooks={hooks}")
    assert result.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), result.stdout


def remove_lock(prefix):
    """Remove the lock of a killed ``eb``, as docs/troubleshooting.md says."""
    shutil.rmtree(prefix.lock)


def with_image(testbed, image, directory):
    """Return a prefix with a recipe for an image, which has all but its packages, and the image's SHA-256."""
    (directory / "tiny.sif").symlink_to(image)
    checksum = testbed.run(f"sha256sum {image}").split()[0]
    lines = f"sources = ['tiny.sif']\nchecksums = ['{checksum}']"
    return Prefix(testbed, directory, "EB_PyTorchContainer", lines), checksum


def with_wheel(testbed, directory):
    """Return a prefix with a recipe for one wheel: a torch that is a single file."""
    wheels = directory / "sources" / "p" / "PyTorch" / "wheels"
    wheels.mkdir(parents=True)
    lock = directory / "tiny.txt"
    wheel = write_wheel(wheels, "torch", "1.0", {"torch/__init__.py": "__version__ = '1.0'\n"})
    lock.write_text(f"torch==1.0 --hash=sha256:{sha256(wheel)}\n")
    return Prefix(testbed, directory, "EB_PyTorchVenv", f"sources = ['tiny.txt']\nchecksums = ['{sha256(lock)}']")


def one_error(result):
    """Return the only line of error in the output."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, result.stderr
    return lines[0]

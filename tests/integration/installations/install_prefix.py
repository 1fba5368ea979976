"""A separate EasyBuild prefix for one recipe, and functions that end its installation in the middle."""

import shutil
import signal

from distributions import sha256, write_wheel

#: For what all easyblocks share: the easyblock whose runtime is not installed, which installs in seconds.
TINY = "1.0-tiny"
SHIFTER = """easyblock = 'EB_PyTorchShifter'
image = 'tiny'
"""

#: A venv whose torch is a single file.
VENV = "1.0-venv"
WHEELS = """easyblock = 'EB_PyTorchVenv'
sources = ['tiny.txt']
checksums = ['{checksum}']
"""

#: A complete image, under another name.
IMAGE = """easyblock = 'EB_PyTorchContainer'
sources = ['tiny.sif']
checksums = ['{checksum}']
"""

RECIPE = """{runtime}name = 'PyTorch'
version = '1.0'
versionsuffix = '-{suffix}'
homepage = 'https://pytorch.org'
description = "A stand-in for the tests of installations."
toolchain = SYSTEM
sanity_check_commands = ['conda-python-simple -c pass']
moduleclass = 'ai'
"""

#: EasyBuild hooks that kill its process group at one point.
HOOKS = """import os, signal
def die():
    os.killpg(0, signal.SIGKILL)
def {hook}
"""
#: A point at which half of the installation is there: Python reads compile_tree.py from its standard input.
INSTALLING = "pre_run_shell_cmd_hook(cmd, *_, **__): cmd[-3:-1] == ['-I', '-'] and os.path.isdir(cmd[-1]) and die()"


class Prefix:
    """A separate EasyBuild prefix for one recipe."""

    def __init__(self, testbed, directory, version):
        self.testbed = testbed
        self.directory = directory
        self.version = version
        self.module = f"PyTorch/{version}"
        self.installation = directory / "software" / self.module
        self.lock = directory / "software" / ".locks" / f"{str(self.installation).replace('/', '_')}.lock"

    def write_recipe(self, runtime):
        """Write the recipe of this version."""
        text = RECIPE.format(runtime=runtime, suffix=self.version.partition("-")[2])
        (self.directory / f"PyTorch-{self.version}.eb").write_text(text)

    def command(self, *options):
        """Return shell code that installs; EasyBuild leads a process group, which a hook can kill."""
        own = f"--installpath={self.directory} --buildpath={self.directory}/build --sourcepath={self.directory}/sources"
        own += f" --repositorypath={self.directory}/repository"
        return f"""PATH={self.directory}/bin:$PATH
setsid --wait eb {own} {" ".join(options)} {self.directory}/PyTorch-{self.version}.eb"""

    def eb(self, *options):
        """Install; return the completed process."""
        return self.testbed.run_unchecked(self.command(*options))

    def works(self):
        """Return whether there is a module; assert that Python runs with it."""
        if not list(self.directory.glob(f"modules/all/{self.module}*")):
            return False
        self.testbed.run(f"""PATH={self.directory}/bin:$PATH
            module use {self.directory}/modules/all; module load {self.module}; conda-python-simple -c pass""")
        return True

    def leftovers(self):
        """Return the files that do not belong to a complete installation."""
        kept = {".user-software", f".{self.version}.replaced"}  # the latter for running containers
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
    """Return a prefix with a recipe for an image, and the image's SHA-256."""
    prefix = Prefix(testbed, directory, "1.0-image")
    (directory / "tiny.sif").symlink_to(image)
    checksum = testbed.run(f"sha256sum {image}").split()[0]
    prefix.write_recipe(IMAGE.format(checksum=checksum))
    return prefix, checksum


def with_wheel(testbed, directory):
    """Return a prefix with a recipe for one wheel."""
    prefix = Prefix(testbed, directory, VENV)
    wheels = directory / "sources" / "p" / "PyTorch" / "wheels"
    wheels.mkdir(parents=True)
    lock = directory / "tiny.txt"
    wheel = write_wheel(wheels, "torch", "1.0", {"torch/__init__.py": "__version__ = '1.0'\n"})
    lock.write_text(f"torch==1.0 --hash=sha256:{sha256(wheel)}\n")
    prefix.write_recipe(WHEELS.format(checksum=sha256(lock)))
    return prefix


def one_error(result):
    """Return the only line of error in the output."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    assert len(lines) == 1, result.stderr
    return lines[0]

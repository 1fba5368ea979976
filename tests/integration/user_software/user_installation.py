"""A container module in a separate prefix, and commands that install a package on top of its image."""

import zipfile

from easybuild_prefix import EasyBuildPrefix


class Installation:
    """An EasyBuild prefix with a container module that has an image of a central directory.

    The packages of the image are bound, by settings in a shell.
    """

    def __init__(self, testbed, image, packages, prefix):
        self.testbed = testbed
        self.recipe = EasyBuildPrefix(testbed, prefix, version="2.13.0", suffix="-mine")
        self.image = image
        self.packages = packages
        self.prefix = prefix
        self.store = prefix / "software" / "PyTorch" / ".user-software"
        self.directory = self.store / "2.13.0-mine"
        self.packed = self.store / "2.13.0-mine.squashfs"

    def add(self, wheels, name="extra_package"):
        """Put a package's files where pip installs them, in a hundredth of pip's time; its commands are left out."""
        (wheel,) = wheels.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.directory / "venv/pytorch/lib/python3.11/site-packages")

    def install(self, options=""):
        """Run ``eb``; return its output."""
        return self.testbed.run(self.eb("skipsteps = ['sanitycheck']", options))

    def eb(self, lines, options=""):
        """Return the command that installs the recipe with more lines, with the packages bound for its sanity check."""
        sources = f"sources = ['{self.image.name}']\ncentral_images = ['{self.image.parent}']"
        self.recipe.write("EB_PyTorchContainer", f"{sources}\n{lines}")
        return f"{self.packages}\n{self.recipe.command(options)} 2>&1"

    def script(self, script):
        """Return a bash script that loads the module, with a separate home directory."""
        return f"export HOME={self.prefix}/home APPTAINER_NO_PRIVS=1; {self.packages}\n{self.recipe.load}\n{script}"

    def run(self, script):
        """Run a script that must succeed with the module loaded; return its standard output."""
        return self.testbed.run(self.script(script))

    def run_unchecked(self, script):
        """Run a script with the module loaded; return the process."""
        return self.testbed.run_unchecked(self.script(script))


def pip_install(wheels, name="extra_package"):
    """Return the command that installs one of the wheels."""
    return f"pip install --no-index --no-deps {wheels}/{name}-*.whl"


IMPORT = "python -c 'import extra_package; extra_package.main()'"
THERE = "extra_package 1.0 /user-software/venv/pytorch/lib/python3.11/site-packages/extra_package.py\n"

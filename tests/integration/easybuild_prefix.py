"""A separate EasyBuild prefix with a recipe of a test."""

from recipe_text import RECIPE


class EasyBuildPrefix:
    """A directory for what EasyBuild installs, and the recipe in it."""

    def __init__(self, testbed, directory, name="PyTorch", version="1.0", suffix=""):
        self.testbed = testbed
        self.directory = directory
        self.names = {"name": name, "version": version, "suffix": suffix}
        self.module = f"{name}/{version}{suffix}"
        self.installation = directory / "software" / self.module
        self.recipe = directory / f"{name}-{version}{suffix}.eb"
        self.load = f"module use {directory}/modules/all; module load {self.module}"

    def write(self, easyblock, lines):
        """Write the recipe with these lines, which override those that all have."""
        self.recipe.write_text(RECIPE.format(easyblock=easyblock, lines=lines, **self.names))

    def command(self, *options):
        """Return the command that installs the recipe."""
        own = f"--installpath={self.directory} --buildpath={self.directory}/build"
        return f"eb {own} --repositorypath={self.directory}/repository {' '.join(options)} {self.recipe}"

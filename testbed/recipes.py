"""The recipes that demo, tests and benchmarks install, and whether what is installed is of this tree."""

import hashlib

DATASET = "MNIST-1998"
CONTAINER = "PyTorch-2.13.0-cpu-singularity"
VENV = "PyTorch-2.13.0-cpu-venv"

#: What an installation is made of; EasyBuild itself looks at the module's name alone.
INGREDIENTS = ("bin/*", "libexec/*", "easyblocks/**/*", "easyconfigs/*/*/*", "modulefiles/cluster/*",
               "runscripts/**/*", "payload/**/*")  # fmt: skip


def module(recipe):
    """The module that a recipe installs: `PyTorch-2.13.0-cpu-venv` is PyTorch/2.13.0-cpu-venv."""
    return recipe.replace("-", "/", 1)


def is_current(layout, recipe):
    """Whether the recipe is installed in the testbed from the tree as it is now."""
    stamp = _stamp(layout, recipe)
    return stamp.exists() and stamp.read_text() == _digest(layout.repository)


def install_command(layout, recipe):
    """The command that installs a recipe, or that brings an older installation up to date.

    A virtual environment is only rebuilt by force, as jobs may run in it; with force, an image is built anew.
    """
    installed = any(layout.modules.glob(f"{module(recipe)}*"))
    option = "--force " if recipe.endswith("-venv") else "--rebuild "
    rebuild = option if installed and not is_current(layout, recipe) else ""
    return f"eb {rebuild}{recipe}.eb"


def note_installed(layout, recipe):
    """Remember that the recipe is now installed from the tree as it is."""
    _stamp(layout, recipe).write_text(_digest(layout.repository))


def _stamp(layout, recipe):
    return layout.root / f"installed-{recipe}"


def _digest(tree):
    digest = hashlib.sha256()
    for pattern in INGREDIENTS:
        for path in sorted(tree.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes())
    return digest.hexdigest()

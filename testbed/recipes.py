"""The recipes that demo, tests and benchmarks install, and whether an installation is up to date with this tree."""

import hashlib
from pathlib import Path

from testbed import shell
from testbed.progress import run

EASYCONFIGS = Path(__file__).resolve().parents[1] / "easyconfigs" / "p" / "PyTorch"
#: The newest PyTorch that has recipes for CPUs.
VERSION = max(
    (path.name.split("-")[1] for path in EASYCONFIGS.glob("PyTorch-*-cpu-venv.eb")),
    key=lambda version: [int(number) for number in version.split(".")],
)
DATASET = "MNIST-1998"
CONTAINER = f"PyTorch-{VERSION}-cpu-singularity"
VENV = f"PyTorch-{VERSION}-cpu-venv"
#: The wheels of both: torch with its hashes.
LOCK = EASYCONFIGS / f"PyTorch-{VERSION}-cpu.txt"

#: What an installation is made of; EasyBuild itself looks at the module's name alone.
INGREDIENTS = (
    "bin/*",
    "libexec/*",
    "easyblocks/**/*",
    "easyconfigs/*/*/*",
    "modulefiles/cluster/*",
    "runscripts/**/*",
    "payload/**/*",
)


def module(recipe):
    """Return the module that a recipe installs: `PyTorch-2.15.0-cpu-venv` installs PyTorch/2.15.0-cpu-venv."""
    return recipe.replace("-", "/", 1)


def is_current(layout, recipe, settings=""):
    """Return whether the recipe is installed from the tree as it is now, with these shell settings."""
    stamp = _stamp(layout, recipe)
    return stamp.exists() and stamp.read_text() == _digest(layout.repository, settings)


def install_command(layout, recipe, settings=""):
    """Return the command that installs a recipe, or updates its installation.

    To rebuild a virtual environment, EasyBuild needs --force, as jobs may run in it. For an image, --rebuild keeps an
    unchanged image, while --force would build it again.
    """
    installed = any(layout.modules.glob(f"{module(recipe)}*"))
    option = "--force " if recipe.endswith("-venv") else "--rebuild "
    rebuild = option if installed and not is_current(layout, recipe, settings) else ""
    return f"eb {rebuild}{recipe}.eb"


def note_installed(layout, recipe, settings=""):
    """Record that the recipe is installed from the tree as it is now, with these shell settings."""
    _stamp(layout, recipe).write_text(_digest(layout.repository, settings))


def install(layout, recipe, settings=""):
    """Install a recipe after shell `settings`, or update it to this tree; wait for another process that does.

    Its output is in the log of the recipe. Raises TestbedError, with EasyBuild's last lines.
    """
    fetch(layout, recipe, settings)
    install_fetched(layout, recipe, settings)


def fetch(layout, recipe, settings=""):
    """Download what a recipe needs, after shell `settings`. Raises TestbedError, with EasyBuild's last lines."""
    if is_current(layout, recipe, settings):
        return
    with layout.locked("sources"):  # recipes share wheels
        _run_eb(layout, recipe, f"{settings}\n{install_command(layout, recipe, settings)} --fetch")


def install_fetched(layout, recipe, settings=""):
    """Install a recipe like `install` whose files are downloaded."""
    with layout.locked(recipe):
        if not is_current(layout, recipe, settings):
            _run_eb(layout, recipe, f"{settings}\n{install_command(layout, recipe, settings)}")
            note_installed(layout, recipe, settings)


def log_of(layout, recipe):
    """The file with the output of the last installation of a recipe that was not shown."""
    return layout.root / "log" / f"{recipe}.log"


def _run_eb(layout, recipe, script):
    lines = [shell.program_code(layout), "set -e", script]
    run(["bash", "-c", "\n".join(lines)], log=log_of(layout, recipe), cwd=layout.root, timeout=3600)


def _stamp(layout, recipe):
    return layout.root / f"installed-{recipe}"


def _digest(tree, settings):
    digest = hashlib.sha256(settings.encode())
    for pattern in INGREDIENTS:
        for path in sorted(tree.glob(pattern)):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(f"{path.relative_to(tree)}\0".encode() + path.read_bytes())
    return digest.hexdigest()

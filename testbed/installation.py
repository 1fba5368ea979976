"""Installs recipes quietly, for tests: ./demo shows what EasyBuild prints."""

from testbed import recipes, shell
from testbed.progress import run


def install(layout, recipe, settings=""):
    """Install a recipe after shell `settings`, or update it to this tree; wait for another process that does.

    Raises
    ------
    TestbedError
        If it cannot be installed; with the last lines of EasyBuild.
    """
    with layout.locked(recipe):
        if recipes.is_current(layout, recipe, settings):
            return
        command = recipes.install_command(layout, recipe, settings)
        with layout.locked("sources"):  # recipes share wheels
            run_eb(layout, recipe, f"{settings}\n{command} --fetch")
        run_eb(layout, recipe, f"{settings}\n{command}")
        recipes.note_installed(layout, recipe, settings)


def run_eb(layout, recipe, script):
    """Run a bash script in a user's shell."""
    lines = [shell.environment_code(layout), "set -e", script]
    log = layout.root / "log" / f"{recipe}.log"
    run(["bash", "-c", "\n".join(lines)], log=log, cwd=layout.root, timeout=3600)

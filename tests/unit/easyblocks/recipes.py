"""The recipes of this tree, for the tests that go over all of them."""

import pytest
from repository import TREE

RECIPES = sorted(TREE.glob("easyconfigs/*/*/*.eb"))
CONTAINER = "PyTorch-2.13.0-cpu-singularity.eb"
VENV = "PyTorch-2.13.0-cpu-venv.eb"
#: For tests of a module's text; tests/integration/module_systems always loads what is written in Tcl.
both_syntaxes = pytest.mark.parametrize(
    "prefix", ["Lua", pytest.param("Tcl", marks=pytest.mark.thorough)], indirect=True
)


def recipe(name):
    return next(path for path in RECIPES if path.name == name)


def command(path, lines):
    """Make a command in a directory that may have others."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/bash\n" + lines)
    path.chmod(0o755)
    return path


def module_text(app):
    """The module file as EasyBuild would write it, without the sections that need an installation."""
    app.src = []
    app.installation.recover()
    app.make_installdir()
    app.module_generator.start_module_creation()
    return app.module_generator.get_description() + app.make_module_extra()

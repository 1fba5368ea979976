"""Gives the easyblocks of this package to `eb --use-entrypoints`, EasyBuild's group easybuild.easyblock.

The package holds the tree of the project as it is, but for the recipes, which are in easybuild/easyconfigs beside it.
"""

import importlib
from pathlib import Path

import easybuild.easyblocks
import easybuild.easyblocks.generic
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.entrypoints import EntrypointEasyblock

EASYBLOCKS = Path(__file__).resolve().parent / "easyblocks"
GENERIC = EASYBLOCKS / "generic"


def module_names(directory):
    """The names of the Python files in a directory, without the extension."""
    return {path.stem for path in directory.glob("*.py")}


def register(package, names):
    """Register the easyblocks that the modules `names` of a package define."""
    for name in sorted(names):
        module = importlib.import_module(f"{package.__name__}.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, EasyBlock) and value.__module__ == module.__name__:
                EntrypointEasyblock()(value)


easybuild.easyblocks.generic.__path__.append(str(GENERIC))
easybuild.easyblocks.__path__.append(str(EASYBLOCKS))
register(easybuild.easyblocks.generic, module_names(GENERIC))
# the others are links to the generic ones, for --include-easyblocks
register(easybuild.easyblocks, module_names(EASYBLOCKS) - module_names(GENERIC))

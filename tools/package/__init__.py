"""Gives the easyblocks of this package to `eb --use-entrypoints`, EasyBuild's group easybuild.easyblock.

The package holds the tree of the project as it is, but for the recipes, which are in easybuild/easyconfigs beside it.
"""

import importlib
import os

import easybuild.easyblocks
import easybuild.easyblocks.generic
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.entrypoints import EntrypointEasyblock

EASYBLOCKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "easyblocks")
GENERIC = os.path.join(EASYBLOCKS, "generic")


def module_names(directory):
    """The names of the Python files in a directory, without the extension."""
    files = (os.path.splitext(file) for file in os.listdir(directory))
    return {name for name, extension in files if extension == ".py"}


def register(package, names):
    """Register the easyblocks that the modules `names` of a package define."""
    for name in sorted(names):
        module = importlib.import_module(f"{package.__name__}.{name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, EasyBlock) and value.__module__ == module.__name__:
                EntrypointEasyblock()(value)


easybuild.easyblocks.generic.__path__.append(GENERIC)
easybuild.easyblocks.__path__.append(EASYBLOCKS)
register(easybuild.easyblocks.generic, module_names(GENERIC))
# the others are links to the generic ones, for --include-easyblocks
register(easybuild.easyblocks, module_names(EASYBLOCKS) - module_names(GENERIC))

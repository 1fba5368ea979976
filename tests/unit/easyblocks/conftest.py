"""Sets EasyBuild up for this tree in a throw-away prefix, for the tests of easyblocks and recipes."""

import functools
import logging
import os
import shutil
import sys
import tempfile
from importlib.machinery import SourceFileLoader
from unittest.mock import patch

import easybuild.easyblocks.generic
import pytest
from easybuild.base import fancylogger
from easybuild.base.exceptions import LoggedException
from easybuild.framework.easyconfig.easyconfig import EasyConfig, get_easyblock_class
from easybuild.tools import options
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.options import set_up_configuration
from recipe_text import RECIPE
from recipes import RECIPES, TREE

from testbed.packages import find_lmod

# where the easyblocks find their own package, and this package the generic easyblocks
sys.path.append(str(TREE / "easyblocks"))
easybuild.easyblocks.generic.__path__.insert(0, str(TREE / "easyblocks" / "generic"))


@functools.cache
def compiled(source):
    """Return the code of a module."""
    return compile(source, "easyblocks", "exec", dont_inherit=True)


@functools.cache
def external_modules(read=options.parse_external_modules_metadata):
    """Return what EasyBuild knows of modules of systems."""
    return read([])


@pytest.fixture(scope="module", autouse=True)
def nothing_made_twice():
    """Each test includes the easyblocks in a directory of its own, and configures EasyBuild: half of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceFileLoader, "source_to_code", lambda _, data, *__, **___: compiled(bytes(data)))
        patch.setattr(options, "parse_external_modules_metadata", lambda _: external_modules())
        yield


@pytest.fixture(autouse=True)
def plain_errors(monkeypatch):
    """EasyBuild 5.1 puts its errors in quotes, and escapes those in them; the tests compare the messages.

    Each error also looks for the source of all its callers, among all modules of this process: a quarter of a second.
    """
    monkeypatch.setattr(EasyBuildError, "__str__", lambda error: error.msg)
    monkeypatch.setattr(LoggedException, "__init__", lambda error, message, **_: Exception.__init__(error, message))


@pytest.fixture
def lmod(monkeypatch):
    """Lmod in the environment, the way its own initialisation leaves it."""
    profile = find_lmod()
    if profile is None:
        pytest.skip("Lmod is not installed: ./run-tests without --fast installs it")
    monkeypatch.setenv("LMOD_CMD", str(profile.parents[1] / "libexec" / "lmod"))


@pytest.fixture
def prefix(request, tmp_path, monkeypatch, lmod):
    """An EasyBuild prefix configured for this tree's easyblocks."""
    # EasyBuild changes its own process: what this makes of it ends with the test. Without that, every test would log to
    # the files of all earlier ones as well, and look for modules in their directories.
    logger = logging.getLogger("fancyroot")  # of EasyBuild, easybuild/base/fancylogger.py
    handlers = list(logger.handlers)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    # `eb` runs Python with -O, which leaves out this search of the whole stack for each line of a log
    monkeypatch.setattr(fancylogger, "_getCallingClassName", lambda **_: fancylogger.OPTIMIZED_ANSWER)
    arguments = [
        f"--prefix={tmp_path}",
        f"--include-easyblocks={TREE}/easyblocks/*.py",
        f"--robot-paths={TREE}/easyconfigs",
        "--modules-tool=Lmod",
        f"--tmpdir={tmp_path}",
        f"--module-syntax={getattr(request, 'param', 'Lua')}",
        "--allow-use-as-root-and-accept-consequences",
    ]
    with patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("EASYBUILD_")]:
            del os.environ[name]
        set_up_configuration(args=arguments, silent=True, reconfigure=True)
        yield tmp_path
    for handler in set(logger.handlers) - set(handlers):
        logger.removeHandler(handler)
        handler.close()


@pytest.fixture
def easyblock(prefix):
    """A function that makes the easyblock instance of a recipe, named by file or given as text."""

    def make(recipe):
        easyconfig = EasyConfig(str(recipe))
        return get_easyblock_class(easyconfig["easyblock"])(easyconfig)

    return make


@pytest.fixture
def container(easyblock, tmp_path):
    """A function that makes the easyblock of a recipe with some lines."""

    def make(lines, kind="EB_PyTorchContainer"):
        recipe = tmp_path / "PyTorch-2.13.0-test.eb"
        names = {"name": "PyTorch", "version": "2.13.0", "suffix": "-test"}
        recipe.write_text(RECIPE.format(easyblock=kind, lines=lines, **names))
        return easyblock(recipe)

    return make


@pytest.fixture
def edited(tmp_path):
    """A function that copies a recipe with its data files and replaces text in it."""

    def edit(name, old, new):
        source = next(recipe for recipe in RECIPES if recipe.name == name)
        directory = tmp_path / "edited"
        shutil.copytree(source.parent, directory)
        text = source.read_text()
        assert old in text
        (directory / name).write_text(text.replace(old, new))
        return directory / name

    return edit

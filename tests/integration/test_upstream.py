"""The recipes pass the tests of EasyBuild's own collection, also those for pull requests.

EasyBuild's packages carry no tests: $UPSTREAM_EASYCONFIGS names a checkout of easybuild-easyconfigs.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from repository import TREE

pytestmark = pytest.mark.testbed


@pytest.fixture
def pull_request(tmp_path):
    """A repository like easybuild-easyconfigs, whose last commit adds the recipes of this tree."""
    checkout = os.environ.get("UPSTREAM_EASYCONFIGS")
    if not checkout:
        pytest.skip("UPSTREAM_EASYCONFIGS does not name a checkout of easybuild-easyconfigs")

    tree = tmp_path / "easybuild-easyconfigs"

    def git(*arguments):
        subprocess.run(
            ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments], cwd=tree, check=True
        )

    shutil.copytree(Path(checkout) / "test", tree / "test")
    shutil.copytree(Path(checkout) / "easybuild/easyconfigs/e/EasyBuild", tree / "easybuild/easyconfigs/e/EasyBuild")
    for name in ("setup.py", "setup.cfg"):
        shutil.copy(Path(checkout) / name, tree)
    git("init", "--quiet", "--initial-branch=develop")
    git("add", ".")
    git("commit", "--quiet", "--message=upstream")
    git("checkout", "--quiet", "-b", "recipes")
    shutil.copytree(
        TREE / "easyconfigs",
        tree / "easybuild/easyconfigs",
        ignore=shutil.ignore_patterns("__pycache__"),
        dirs_exist_ok=True,
    )
    git("add", ".")
    git("commit", "--quiet", "--message=recipes")
    return tree


@pytest.mark.thorough  # needs a checkout
def test_the_recipes_pass_the_tests_for_pull_requests_to_easybuilds_collection(testbed, pull_request):
    result = testbed.run_unchecked(
        f"""\
python3 -m pip install --quiet --target {pull_request.parent}/packages graphviz
export PYTHONPATH={pull_request}:{pull_request.parent}/packages
export EASYBUILD_ROBOT_PATHS={pull_request}/easybuild/easyconfigs
export EASYBUILD_INCLUDE_EASYBLOCKS={TREE}/easyblocks/*.py GITHUB_EVENT_NAME=pull_request GITHUB_BASE_REF=develop
{testbed.layout.root}/eb-venv/bin/python -W ignore -m test.easyconfigs.suite 2>&1""",
        cwd=pull_request,
    )
    assert result.returncode == 0, result.stdout


#: Runs a module of EasyBuild's tests of easyblocks, or those of its tests whose names have one of some words.
RUN = """import importlib, sys, unittest
from easybuild.tools.options import set_up_configuration
if sys.argv[1] == "general":
    set_up_configuration(args=[], silent=True)
def tests(suite):
    for test in suite:
        yield from tests(test) if isinstance(test, unittest.TestSuite) else [test]
found = importlib.import_module("test.easyblocks." + sys.argv[1]).suite(unittest.defaultTestLoader)
wanted = [test for test in tests(found) if any(word in test.id() for word in sys.argv[2:])]
assert wanted
sys.exit(not unittest.TextTestRunner().run(unittest.TestSuite(wanted)).wasSuccessful())
"""


@pytest.mark.thorough  # needs a checkout
def test_the_generic_easyblocks_pass_the_tests_of_easybuilds_easyblocks(testbed, tmp_path):
    checkout = os.environ.get("UPSTREAM_EASYBLOCKS")
    if not checkout:
        pytest.skip("UPSTREAM_EASYBLOCKS does not name a checkout of easybuild-easyblocks")
    shutil.copytree(checkout, tmp_path / "tree", ignore=shutil.ignore_patterns(".git"))
    for path in (TREE / "easyblocks" / "generic").glob("*.py"):
        shutil.copy(path, tmp_path / "tree/easybuild/easyblocks/generic")
    (tmp_path / "tree/run.py").write_text(RUN)
    for module, words in (
        ("init_easyblocks", "containerimage lockedvenv"),
        ("module", "containerimage lockedvenv"),
        ("general", "general"),
    ):
        testbed.run(
            f"unset ${{!EASYBUILD_@}}; export EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES=1 PYTHONPATH=$PWD\n"
            f"{testbed.layout.root}/eb-venv/bin/python -O run.py {module} {words} 2>&1",
            cwd=tmp_path / "tree",
        )

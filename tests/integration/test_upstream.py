"""The recipes pass the tests of EasyBuild's own collection, also those for pull requests.

EasyBuild's packages carry no tests: $UPSTREAM_EASYCONFIGS names a checkout of easybuild-easyconfigs.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.testbed

TREE = Path(__file__).resolve().parents[2]


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

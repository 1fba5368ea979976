"""A site keeps recipes and profile in a directory of its own; an upgrade is another checkout (docs/your-site.md)."""

import shutil

import pytest
from repository import TREE

pytestmark = pytest.mark.testbed

PARTS = ("easyblocks", "easyconfigs", "modulefiles", "runscripts", "payload", "bin", "libexec")

RECIPE = """easyblock = 'EB_PyTorchShifter'
name = 'PyTorch'
version = '1.0'
versionsuffix = '-ours'
homepage = 'https://pytorch.org'
description = "a recipe of the site"
toolchain = SYSTEM
image = 'tiny'
cluster = 'mysite'
sanity_check_commands = ['conda-python-simple -c pass']
moduleclass = 'ai'
"""


@pytest.fixture
def place(prefix, work):
    """A directory with two checkouts and the files of a site; a `shifter` is on PATH."""
    for release in ("1.0", "1.1"):
        for part in PARTS:
            shutil.copytree(TREE / part, work / release / part, symlinks=True)
        (work / release / "payload" / "release").write_text(release)
    recipes = work / "site" / "easyconfigs" / "p" / "PyTorch"
    recipes.mkdir(parents=True)
    (recipes / "PyTorch-1.0-ours.eb").write_text(RECIPE)
    profiles = work / "site" / "modulefiles" / "cluster"
    profiles.mkdir(parents=True)
    (profiles / ".policy.tcl").symlink_to("../../../current/modulefiles/cluster/.policy.tcl")
    text = (TREE / "modulefiles" / "cluster" / "ethernet").read_text()
    (profiles / "mysite").write_text(f"{text}policy NCCL_SOCKET_IFNAME ours0\n")
    return work


def eb(testbed, prefix, place, release, options=""):
    """Install the site's recipe with a checkout, as the page does; return what a user of the module sees."""
    (place / "current").unlink(missing_ok=True)
    (place / "current").symlink_to(release)
    return testbed.run(
        f"""module unload pytorch-easybuild; unset ${{!EASYBUILD_@}}
export EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES=1 EASYBUILD_PREFIX={place}/eb
export EASYBUILD_ROBOT_PATHS={place}/site/easyconfigs: PATH={prefix.directory}/bin:$PATH
module use {place}/site/modulefiles {place}/current/modulefiles; module load pytorch-easybuild
eb {options} PyTorch-1.0-ours.eb >eb.log || tail -n 30 eb.log
module unuse {place}/site/modulefiles {place}/current/modulefiles; module load PyTorch/1.0-ours
cat $PAYLOAD/release; echo " $NCCL_SOCKET_IFNAME $LOADEDMODULES" """,
        cwd=place,
    )


def test_recipes_and_profile_of_a_site_stay_outside_the_tree_and_an_upgrade_is_another_checkout(testbed, prefix, place):
    assert eb(testbed, prefix, place, "1.0").startswith("1.0 ours0 ")
    output = eb(testbed, prefix, place, "1.1", "--rebuild")
    assert output.startswith("1.1 ours0 ")
    assert "cluster/mysite" in output
    for release in ("1.0", "1.1", "site", "current"):
        path = place / release
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    assert (
        testbed.run(f"module use {place}/eb/modules/all; module load PyTorch/1.0-ours; echo $NCCL_SOCKET_IFNAME")
        == "ours0\n"
    )

"""Modules in the setups of sites: hierarchical naming, Lmod's cache, and EasyBuild's own PyTorch recipes."""

import subprocess
import sys

import pytest
from written_modules import VENV, prepare_installation

from testbed.module_systems import values
from testbed.packages import find_lmod
from testbed.recipes import EASYCONFIGS

pytestmark = pytest.mark.testbed


@pytest.fixture(scope="module")
def hierarchical(testbed, venv, module_system, tmp_path_factory):
    """The directory of the venv's module, written with a hierarchical naming scheme."""
    root = tmp_path_factory.mktemp("hierarchical")
    prepare_installation(testbed, VENV, root)
    testbed.run(
        f"eb --module-naming-scheme=HierarchicalMNS --installpath={root} --module-only "
        f"--force --skip-sanity-check {root}/{VENV}.eb"
    )
    return root


def test_a_hierarchical_naming_scheme_puts_the_module_into_core(hierarchical, module_system):
    root = hierarchical
    name = VENV.replace("-", "/", 1)
    script = f'module load {name}; echo "$CONTAINERROOT"; module unload {name}; echo "${{CONTAINERROOT-gone}}"'
    printed = module_system("Lmod").run(script, root / "modules/all/Core").split()
    assert printed == [str(root / "software" / name), "gone"]


def test_lmods_cache_has_the_modules_and_loading_with_it_gives_a_user_the_same(modules_of, module_system, tmp_path):
    site = modules_of("Lmod", "Lua")[VENV]
    modules = site.root / "modules/all"
    writer = find_lmod().parents[1] / "libexec" / "update_lmod_system_cache_files"
    # as a site's cron job, which has another HOME
    written = subprocess.run(
        [writer, "-d", tmp_path / "cache", "-t", tmp_path / "stamp", modules],
        env={"HOME": str(tmp_path / "absent"), "PATH": "/usr/bin:/bin"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert written.returncode == 0, written.stderr
    (tmp_path / "lmodrc.lua").write_text(
        f'scDescriptT = {{ {{ ["dir"] = "{tmp_path}/cache", ["timestamp"] = "{tmp_path}/stamp" }} }}\n'
    )
    cached = f"export LMOD_RC={tmp_path}/lmodrc.lua"
    assert f"{tmp_path}/cache" in site.run_unchecked(f"{cached}; module --config").stderr
    text = site.run_unchecked(f"{cached}; module spider {site.name}").stderr
    assert f"module load {site.name}" in text
    for number, setup in enumerate(["true", cached]):
        site.run(f"{setup}; module load {site.name}; unset LMOD_RC; env --null > {tmp_path}/{number}")
    assert values(tmp_path / "0") == values(tmp_path / "1")


@pytest.mark.thorough
def test_easybuilds_own_pytorch_recipes_and_these_do_not_hide_each_other(testbed, tmp_path):
    download = f"{sys.executable} -m pip download --quiet --no-deps --no-binary=:all: --no-build-isolation"
    subprocess.run([*download.split(), "--dest", tmp_path, "easybuild-easyconfigs==5.3.0"], check=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    (theirs,) = tmp_path.glob("*/easybuild/easyconfigs")
    names = {path.name for path in EASYCONFIGS.rglob("*.eb")}
    assert not names & {path.name for path in theirs.rglob("*.eb")}
    robot = f"eb --robot-paths={EASYCONFIGS}:{theirs} --robot --dry-run --terse"
    recipe = max(path.name for path in (theirs / "p/PyTorch").glob("PyTorch-2.*-foss-*.eb") if "CUDA" not in path.name)
    last = testbed.run(f"{robot} {recipe}", timeout=1800).splitlines()[-1]
    assert last.endswith(str(theirs / "p/PyTorch" / recipe))
    assert testbed.run(f"{robot} {VENV}.eb").splitlines()[-1].endswith(str(EASYCONFIGS / f"{VENV}.eb"))
    block = testbed.run(f"eb --robot-paths={theirs} --list-easyblocks=simple")
    assert {"EB_PyTorch", "EB_PyTorchVenv"} <= set(block.split())

"""Modules in the setups of sites: hierarchical naming, and EasyBuild's own PyTorch recipes."""

import subprocess
import sys

import pytest
from written_modules import VENV, prepare_installation

from testbed.recipes import EASYCONFIGS

pytestmark = pytest.mark.testbed


def test_a_hierarchical_naming_scheme_puts_the_module_into_core(testbed, venv, module_system, tmp_path):
    prepare_installation(testbed, VENV, tmp_path)
    options = f"--module-naming-scheme=HierarchicalMNS --installpath={tmp_path}"
    testbed.run(f"eb {options} --module-only --force --skip-sanity-check {tmp_path}/{VENV}.eb")
    name = VENV.replace("-", "/", 1)
    script = f'module load {name}; echo "$CONTAINERROOT"; module unload {name}; echo "${{CONTAINERROOT-gone}}"'
    printed = module_system("Lmod").run(script, tmp_path / "modules/all/Core").split()
    assert printed == [str(tmp_path / "software" / name), "gone"]


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

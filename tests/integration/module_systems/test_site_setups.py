"""Modules in the setups of sites: hierarchical naming."""

import pytest
from written_modules import VENV, prepare_installation

pytestmark = pytest.mark.testbed


def test_a_hierarchical_naming_scheme_puts_the_module_into_core(testbed, venv, module_system, tmp_path):
    prepare_installation(testbed, VENV, tmp_path)
    options = f"--module-naming-scheme=HierarchicalMNS --installpath={tmp_path}"
    testbed.run(f"eb {options} --module-only --force --skip-sanity-check {tmp_path}/{VENV}.eb")
    name = VENV.replace("-", "/", 1)
    script = f'module load {name}; echo "$CONTAINERROOT"; module unload {name}; echo "${{CONTAINERROOT-gone}}"'
    printed = module_system("Lmod").run(script, tmp_path / "modules/all/Core").split()
    assert printed == [str(tmp_path / "software" / name), "gone"]

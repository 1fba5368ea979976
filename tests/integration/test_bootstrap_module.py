"""The bootstrap module under Lmod and Environment Modules: EasyBuild's settings, and MODULEPATH."""

from typing import NamedTuple

import pytest
from recorded_environment import recorded

from testbed.module_systems import MODULEFILES, snapshot, values

pytestmark = pytest.mark.testbed

RECIPES = MODULEFILES.parent / "easyconfigs"
BLOCKS = MODULEFILES.parent / "easyblocks" / "*.py"
SITES_FILE = """[config]
prefix = %(BASE)s/prefix
sourcepath: /srv/sources
module-syntax = Tcl
[basic]
robot-paths = /srv/recipes:%(DEFAULT_ROBOT_PATHS)s
[override]
include-easyblocks=/srv/easyblocks/*.py
[DEFAULT]
BASE = /srv
"""


class Case(NamedTuple):
    """Settings of EasyBuild, the variables EASYBUILD_* after loading, and how MODULEPATH begins."""

    modulepath: str
    exports: str = ""
    file: str = ""
    expected: dict = {}


CASES = {
    "none": Case(
        "{home}/.local/easybuild/modules/all",
        expected={
            "ROBOT_PATHS": f"{RECIPES}:",
            "INCLUDE_EASYBLOCKS": f"{BLOCKS}",
            "PREFIX": None,
            "SOURCEPATH_DATA": None,
        },
    ),
    "exported": Case(
        "/srv/mine/modules/all",
        exports="export EASYBUILD_PREFIX=/srv/mine EASYBUILD_SOURCEPATH=/srv/s EASYBUILD_ROBOT_PATHS=/srv/recipes",
        expected={"ROBOT_PATHS": f"{RECIPES}:/srv/recipes", "PREFIX": "/srv/mine", "SOURCEPATH_DATA": "/srv/s"},
    ),
    "in a configuration file": Case(
        "/srv/prefix/modules/all",
        file=SITES_FILE,
        expected={
            "ROBOT_PATHS": f"{RECIPES}:/srv/recipes:",
            "INCLUDE_EASYBLOCKS": f"{BLOCKS},/srv/easyblocks/*.py",
            "PREFIX": None,
            "SOURCEPATH": None,
            "MODULE_SYNTAX": None,
            "SOURCEPATH_DATA": "/srv/sources",
        },
    ),
    "exported over a configuration file": Case(
        "/srv/mine/modules/all",
        exports="export EASYBUILD_PREFIX=/srv/mine",
        file=SITES_FILE,
        expected={"PREFIX": "/srv/mine"},
    ),
    "hierarchical": Case(
        "/srv/i/modules/all/Core",
        exports="export EASYBUILD_MODULE_NAMING_SCHEME=HierarchicalMNS EASYBUILD_INSTALLPATH=/srv/i",
    ),
    "hierarchical with classes": Case(
        "/srv/m/all/Core/ai:/srv/m/all/Core/data",
        file="[config]\nmodule-naming-scheme = CategorizedHMNS\ninstallpath-modules = /srv/m\n",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_bootstrap_module_leaves_easybuilds_settings_as_they_are(modules, tmp_path, case):
    config = tmp_path / ".config" / "easybuild" / "config.cfg"
    config.parent.mkdir(parents=True)
    config.write_text(case.file)
    load, unload = (f"module {command} pytorch-easybuild" for command in ("load", "unload"))
    own = f"export HOME={tmp_path}\n{case.exports}"
    script, before, loaded, after = recorded(tmp_path, own, load, f"{load}\n{unload}")
    result = modules.run_unchecked(f"set -e\n{script}")
    assert result.returncode == 0, result.stderr
    assert snapshot(after) == snapshot(before)
    new = values(loaded)
    assert {name: new.get(f"EASYBUILD_{name}") for name in case.expected} == case.expected
    assert new["EASYBUILD_MODULES_TOOL"] == modules.name.replace(" ", "")
    assert f"{new['MODULEPATH']}:".startswith(f"{case.modulepath.format(home=tmp_path)}:")
    place = "/srv/prefix/software, as set in" if case.file == SITES_FILE else f"{tmp_path}/.local"
    message = f"software will be installed in {place}"
    is_exported = "_PREFIX" in case.exports or "_INSTALLPATH" in case.exports
    assert (message in result.stderr) is not is_exported, result.stderr

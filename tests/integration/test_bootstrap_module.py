"""The bootstrap module under Lmod and Environment Modules: EasyBuild's settings, and MODULEPATH."""

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


#: Name -> the shell's exports, the configuration file, variables after loading, and how MODULEPATH begins.
CASES = {
    "none": (
        "",
        "",
        {"ROBOT_PATHS": f"{RECIPES}:", "INCLUDE_EASYBLOCKS": f"{BLOCKS}", "PREFIX": None, "SOURCEPATH_DATA": None},
        "{home}/.local/easybuild/modules/all",
    ),
    "exported": (
        "export EASYBUILD_PREFIX=/srv/mine EASYBUILD_SOURCEPATH=/srv/s EASYBUILD_ROBOT_PATHS=/srv/recipes",
        "",
        {"ROBOT_PATHS": f"{RECIPES}:/srv/recipes", "PREFIX": "/srv/mine", "SOURCEPATH_DATA": "/srv/s"},
        "/srv/mine/modules/all",
    ),
    "in a configuration file": (
        "",
        SITES_FILE,
        {
            "ROBOT_PATHS": f"{RECIPES}:/srv/recipes:",
            "INCLUDE_EASYBLOCKS": f"{BLOCKS},/srv/easyblocks/*.py",
            **dict.fromkeys(("PREFIX", "SOURCEPATH", "MODULE_SYNTAX")),
            "SOURCEPATH_DATA": "/srv/sources",
        },
        "/srv/prefix/modules/all",
    ),
    "exported over a configuration file": (
        "export EASYBUILD_PREFIX=/srv/mine",
        SITES_FILE,
        {"PREFIX": "/srv/mine"},
        "/srv/mine/modules/all",
    ),
    "hierarchical": (
        "export EASYBUILD_MODULE_NAMING_SCHEME=HierarchicalMNS EASYBUILD_INSTALLPATH=/srv/i",
        "",
        {},
        "/srv/i/modules/all/Core",
    ),
    "hierarchical with classes": (
        "",
        "[config]\nmodule-naming-scheme = CategorizedHMNS\ninstallpath-modules = /srv/m\n",
        {},
        "/srv/m/all/Core/ai:/srv/m/all/Core/data",
    ),
}


@pytest.mark.parametrize(("own", "file", "expected", "modulepath"), CASES.values(), ids=CASES)
def test_the_bootstrap_module_leaves_easybuilds_settings_as_they_are(
    modules, tmp_path, own, file, expected, modulepath
):
    config = tmp_path / ".config" / "easybuild" / "config.cfg"
    config.parent.mkdir(parents=True)
    config.write_text(file)
    load, unload = (f"module {command} pytorch-easybuild" for command in ("load", "unload"))
    script, before, loaded, after = recorded(tmp_path, f"export HOME={tmp_path}\n{own}", load, f"{load}\n{unload}")
    result = modules.run_unchecked(f"set -e\n{script}")
    assert result.returncode == 0, result.stderr
    assert snapshot(after) == snapshot(before)
    new = values(loaded)
    assert {name: new.get(f"EASYBUILD_{name}") for name in expected} == expected
    assert new["EASYBUILD_MODULES_TOOL"] == modules.name.replace(" ", "")
    assert f"{new['MODULEPATH']}:".startswith(f"{modulepath.format(home=tmp_path)}:")
    place = "/srv/prefix/software, as set in" if file == SITES_FILE else f"{tmp_path}/.local"
    message = f"software will be installed in {place}"
    assert (message in result.stderr) is not any(name in own for name in ("_PREFIX", "_INSTALLPATH")), result.stderr

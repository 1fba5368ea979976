"""The documented variables of a module, and its help, search and show."""

import re
from pathlib import Path

import pytest
from recorded_environment import recorded
from written_modules import ENTER

from testbed.module_systems import values

pytestmark = pytest.mark.testbed


def documented_variables():
    """Return the table of docs/module.md: name -> its cells for the container, the venv and Shifter."""
    rows = {}
    for line in (Path(__file__).resolve().parents[3] / "docs" / "module.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            rows.update(dict.fromkeys(re.findall(r"`([A-Z_]+)`", cells[0]), cells[1:4]))
    return rows


def test_the_module_sets_the_documented_variables_and_nothing_else(site, tmp_path):
    """With every parameter of a recipe, and with user-software."""
    site.user_software.mkdir(parents=True, exist_ok=True)
    script, before, loaded = recorded(tmp_path, "", f"module load {site.name}")
    site.run(script)
    site.keep_no_user_software()
    old, new = values(before), values(loaded)
    changed = {name for name in new if new.get(name) != old.get(name)}
    documented = {name: cells[list(ENTER).index(site.recipe)] for name, cells in documented_variables().items()}
    assert len(documented) > 20
    possible = {name: cell for name, cell in documented.items() if cell != "-"}
    assert {name for name, cell in possible.items() if not cell.startswith(("if needed", "if [packed]"))} <= changed
    # other variables are EasyBuild's, notes for unloading, and those of the cluster profile
    unexplained = {
        name
        for name in changed - possible.keys()
        if not re.match("EB(VERSION|DEVEL)|__", name) and f"__CLUSTER_SET_{name}" not in new
    }
    assert unexplained == {"MODULEPATH"}

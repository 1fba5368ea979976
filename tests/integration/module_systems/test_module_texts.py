"""The documented variables of a module, and its help, search and show."""

import os
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


def test_help_has_the_three_lines_and_names_variables_that_the_module_sets(site):
    result = site.run_unchecked(f"module help {site.name}")
    lines = [line.strip() for line in result.stderr.splitlines()]
    enter = ENTER[site.recipe]
    start = lines.index(f"module load {site.name}")
    assert lines[start + 1 : start + 3] == [
        f"srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u train.py",
        f"srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed -u $PAYLOAD/mnist_ddp.py",
    ]
    named = " ".join(f"${{{name}:?}}" for name in re.findall(r"\$([A-Z]\w+)", " ".join(lines)))
    assert site.run(f"module load {site.name}; echo {named}")


def test_show_lists_every_variable_that_loading_sets(site, tmp_path):
    script, before, loaded = recorded(tmp_path, "", f"module load {site.name}")
    site.run(script)
    old, new = values(before), values(loaded)
    profile = "$(tr : '\\n' <<<$LOADEDMODULES | grep ^cluster/)"
    shown = site.run_unchecked(f"module show {site.name}; module load {site.name}; module show {profile}").stderr
    for name in new.keys() - old.keys():
        assert re.search(rf"\b{name}\b", shown), name
    assert os.environ["HOME"] in shown

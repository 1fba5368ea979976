"""The environment after loading, loading again, switching and unloading."""

import re

import pytest
from recorded_environment import recorded
from written_modules import OWN

from testbed.module_systems import snapshot, values
from testbed.recipes import CONTAINER, VENV

pytestmark = pytest.mark.testbed


@pytest.mark.parametrize(
    "own",
    [
        pytest.param(own, id=name, marks=[] if name in ("lists", "signs") else pytest.mark.thorough)
        for name, own in OWN.items()
    ],
)
def test_unloading_restores_every_byte_and_loading_twice_changes_nothing(site, own, tmp_path):
    load = f"module load {site.name}"
    steps = own, load, load, f"module unload {site.name}", f"{load}; module purge"
    script, before, loaded, twice, after, again = recorded(tmp_path, *steps)
    site.run(script)
    # Lmod and Environment Modules 4 restore an empty value as unset
    loses = site.system.name == "Lmod" or site.system.version.startswith("4.")
    lost = {f"{name}=" for name, value in values(loaded).items() if value and loses}
    expected = [entry for entry in snapshot(before) if entry not in lost]
    assert snapshot(after) == expected
    assert snapshot(again) == expected
    assert values(twice) == values(loaded)
    assert values(loaded) != values(before)


def test_another_version_replaces_the_first_or_is_refused_with_a_message(written, tmp_path):
    first, second = written[CONTAINER], written[VENV]
    load = f"module load {first.name}; module load {second.name}; echo $? $EBROOTPYTORCH ${{SIF-unset}}"
    script, before, after = recorded(tmp_path, "", f"{load}; module purge")
    result = first.run_unchecked(script)
    message = " ".join(result.stderr.split())
    if first.system.name == "Lmod":
        assert result.stdout == f"0 {second.installation} unset\n"
        assert f"{first.name} => {second.name}" in message
    else:
        assert result.stdout.startswith(f"1 {first.installation} {first.installation}/")
        assert "cannot be loaded due to a conflict" in message
        assert "module unload PyTorch" in message
    assert snapshot(after) == snapshot(before)


def test_a_pytorch_module_of_another_origin_is_not_loaded_beside_ours(site, tmp_path):
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch" / "1.0").write_text("#%Module\nsetenv THEIRS 1\n")
    theirs = f"export MODULEPATH={tmp_path}:$MODULEPATH; module load pytorch/1.0"
    script, before, after = recorded(tmp_path, theirs, f"module load {site.name}; echo $?")
    result = site.run_unchecked(script)
    assert result.stdout == "1\n"
    message = " ".join(result.stderr.split())
    assert re.search(r"[Cc]annot (load|be loaded)", message), message
    assert "pytorch" in message
    assert values(after) == values(before)


def test_a_users_own_constraints_and_extensions_are_kept_beside_the_modules(site):
    own = "https://example.org//their.txt file:///their%20own.txt"
    output = site.run(
        f"""export PIP_CONSTRAINT='{own}' TORCH_EXTENSIONS_DIR=/theirs
module load {site.name}
echo "$PIP_CONSTRAINT"; echo "$TORCH_EXTENSIONS_DIR"
module unload {site.name}
echo "$PIP_CONSTRAINT" "$TORCH_EXTENSIONS_DIR" """
    )
    ours = f"{site.installation}/constraints.txt"
    assert output.splitlines() == [f"{own} {ours}", "/theirs", f"{own} /theirs"]


def test_environment_modules_reload_ours_and_the_modules_beside_it(site, tmp_path):
    if site.system.name == "Lmod":
        pytest.skip("the command is that of Environment Modules")
    (tmp_path / "other").write_text("#%Module\nsetenv OTHER 1\n")
    load = f"module use {tmp_path}; module load other {site.name}"
    script, before, loaded, again, after = recorded(
        tmp_path, "", load, "module reload", f"module purge; module unuse {tmp_path}"
    )
    site.run(script)
    assert values(again) == values(loaded)
    assert values(again)["OTHER"] == "1"
    assert snapshot(after) == snapshot(before)

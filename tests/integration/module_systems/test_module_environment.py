"""The environment after loading, loading again, switching and unloading; the documented variables; what is refused.

In one file, for which EasyBuild writes the modules once for each module system.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from recorded_environment import recorded
from written_modules import ENTER, OWN

from testbed.module_systems import snapshot, values
from testbed.recipes import CONTAINER, VENV

pytestmark = pytest.mark.testbed


def documented_variables(column):
    """Return the table of docs/module.md: name -> its cell for a module, in the order of ENTER."""
    rows = {}
    for line in (Path(__file__).resolve().parents[3] / "docs" / "module.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            rows.update(dict.fromkeys(re.findall(r"`([A-Z_]+)`", cells[0]), cells[1 + column]))
    return {name: cell for name, cell in rows.items() if cell != "-"}


def test_the_module_sets_the_documented_variables_and_nothing_else(site, tmp_path):
    """With every parameter of a recipe, and with user-software."""
    site.user_software.mkdir(parents=True, exist_ok=True)
    script, before, loaded = recorded(tmp_path, "", f"module load {site.name}")
    site.run(script)
    site.keep_no_user_software()
    new = values(loaded)
    changed = {name for name, _ in new.items() - values(before).items()}
    documented = documented_variables(list(ENTER).index(site.recipe))
    assert len(documented) > 15
    always = [name for name, cell in documented.items() if not cell.startswith(("if needed", "if [packed]"))]
    assert changed >= {*always}
    # other variables are EasyBuild's, notes for unloading, and those of the cluster profile
    of_profile = {name.removeprefix("__CLUSTER_SET_") for name in new if name.startswith("__CLUSTER_SET_")}
    others = changed - documented.keys() - of_profile
    assert {name for name in others if not re.match("EB(VERSION|DEVEL)|__", name)} == {"MODULEPATH"}


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
    first = written[CONTAINER]
    second = written[VENV]
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


#: An ordinary user: root may read everything.
USER = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]


def load_as_user(site):
    """Load the module as an ordinary user; return the process."""
    modules = f"export MODULEPATH={site.root}/modules/all"
    script = f"{site.system.code}\n{modules}\nmodule load {site.name}; echo $? ${{EBROOTPYTORCH-unset}}"
    for path in (site.root, *site.root.parents[:-1]):
        if path.stat().st_uid == os.geteuid():
            path.chmod(path.stat().st_mode | 0o055)
    command = [*(USER if os.geteuid() == 0 else []), "bash", "-c", script]
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=300)


def damage(path, how):
    """Put something that cannot be read in place of a file, or of its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if how == "link":
        path.symlink_to("/nowhere/file")
    elif how != "gone":  # also in "order"
        path.write_text("content")
    if how == "file":
        path.chmod(0)
    if how == "directory":
        path.parent.chmod(0)


@pytest.mark.parametrize("how", ["gone", "link", "file", "directory"])
def test_a_python_that_cannot_be_read_is_refused(written, how):
    """Otherwise, the next Python on PATH would run, without a message."""
    site = written[VENV]
    library = site.installation / "venv/lib"
    kept = site.installation / "venv/kept"
    library.rename(kept)
    (python,) = kept.glob("python3*")
    try:
        damage(library / python.name / "os.py", "order")
        assert load_as_user(site).stdout == f"0 {site.installation}\n"
        damage(library / python.name / "os.py", how)
        result = load_as_user(site)
    finally:
        (library / python.name).chmod(0o755)
        shutil.rmtree(library)
        kept.rename(library)
    assert result.stdout == "1 unset\n"
    assert "which cannot be read on this host" in " ".join(result.stderr.split())


@pytest.mark.parametrize("how", ["gone", "link", "file"])
def test_an_image_that_cannot_be_read_is_refused(image_site, how):
    site = image_site
    image = site.installation / f"{CONTAINER}.sif"
    target = image.readlink()
    try:
        damage(image, how)
        result = load_as_user(site)
    finally:
        image.unlink(missing_ok=True)
        image.symlink_to(target)
    assert result.stdout == "1 unset\n"
    assert "image not found, or not readable" in " ".join(result.stderr.split())


@pytest.mark.parametrize("home", ["", "relative"])
def test_a_home_that_is_no_absolute_path_is_refused(site, home):
    result = site.run_unchecked(f"export HOME={home}; module load {site.name}; echo $? ${{EBROOTPYTORCH-unset}}")
    assert result.stdout == "1 unset\n"
    assert f"HOME is not an absolute path: '{home}'." in " ".join(result.stderr.split())

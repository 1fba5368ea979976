"""Every recipe: its place, its checksums, and EasyBuild's own checks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import sha256
from recipes import RECIPES, TREE

pytestmark = pytest.mark.early

each_recipe = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)


@each_recipe
def test_a_recipe_is_where_easybuild_looks_for_it(path):
    name = path.name.split("-")[0]
    assert path.parent == TREE / "easyconfigs" / name[0].lower() / name


@each_recipe
def test_checksums_of_files_beside_a_recipe_are_those_of_the_files(path, easyblock):
    app = easyblock(path)
    sources = app.cfg["sources"] or app.cfg.get("data_sources") or []
    assert len(app.cfg["checksums"]) == len(sources) + len(app.cfg["patches"]), "a source or patch without checksum"
    assert sources or app.cfg["image"], "a recipe of nothing"
    for source in [*app.cfg["sources"], *app.cfg["patches"]]:
        file = path.parent / source
        if file.exists():
            assert sha256(file) in path.read_text(), source


#: Wheels for ROCm 6.0, of which no hash is published: the first fetch notes it.
UNHASHED = {"PyTorch-2.3.1-rocm-6.0.txt": ["torch", "torchvision", "torchaudio", "pytorch-triton-rocm"]}


@pytest.mark.parametrize("lock", sorted(TREE.glob("easyconfigs/*/*/*.txt")), ids=lambda path: path.name)
def test_every_locked_requirement_has_a_version_and_a_hash(lock):
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    unhashed = [line for line in lines if re.fullmatch(r"[a-z-]+==\S+", line)]
    assert [line.partition("==")[0] for line in unhashed] == UNHASHED.get(lock.name, [])
    assert len(lines) > len(unhashed)
    for line in set(lines) - set(unhashed):
        assert re.fullmatch(r"[a-z0-9-]+==\S+( --hash=sha256:[0-9a-f]{64})+", line), line


@pytest.mark.parametrize("check", ["--check-contrib", pytest.param("--dry-run", marks=pytest.mark.slow)])
def test_the_recipes_pass_easybuilds_own_check(check, tmp_path, lmod):
    eb = Path(sys.executable).with_name("eb")
    command = [eb, check, f"--include-easyblocks={TREE}/easyblocks/*.py", f"--prefix={tmp_path}"]
    command += [f"--robot-paths={TREE}/easyconfigs", "--allow-use-as-root-and-accept-consequences", *RECIPES]
    environment = {**os.environ, "EB_PYTHON": sys.executable}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "unknown easyconfig parameter" not in result.stderr

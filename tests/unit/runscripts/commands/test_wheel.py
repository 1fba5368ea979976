"""The launcher without EasyBuild: `pip install ./runscripts` puts its commands into an environment."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SHOW_PREFIX = "import os, sys; print(sys.prefix, os.environ['RANK'], os.environ['WORLD_SIZE'])"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A bare virtual environment with the wheel, which is installed offline."""
    root = tmp_path_factory.mktemp("wheel")
    source = Path(__file__).resolve().parents[4] / "runscripts"
    # pip builds in the directory
    shutil.copytree(source, root / "source", symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "build"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-w", root, root / "source"]
    subprocess.run(build, check=True, timeout=600)
    (wheel,) = root.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "v"], check=True, timeout=600)
    install = [*pip, "--python", root / "v" / "bin" / "python", "install", "--quiet", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=600)
    return root / "v"


@pytest.mark.parametrize("call", ["{0}/bin/conda-python-distributed", "PATH={0}/bin:$PATH conda-python-distributed"])
def test_a_rank_runs_the_python_of_the_environment(run, environment, step, call):
    shown = run("/bin/bash", "-c", f'{call.format(environment)} -c "$0"', SHOW_PREFIX, env=step)
    assert shown == f"{environment} 3 4\n"


def test_all_commands_are_there_and_no_torchrun_in_place_of_torchs(run, environment):
    commands = {path.name for path in (environment / "bin").iterdir()}
    assert "torchrun" not in commands
    for name in ("conda-python-distributed", "ddp-env", "get-master", "list-packages", "pytorch-run", "pytorch-stacks"):
        assert run(str(environment / "bin" / name), "--help").lower().startswith("usage: ")
    share = environment / "share/pytorch-runscripts/runscripts"
    for name in ("pytorch-doctor", "pytorch-stacks"):  # which pytorch-run and pytorch-stacks start on the nodes
        assert run(str(share / name), "--help").lower().startswith("usage: ")

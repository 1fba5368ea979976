"""./new-release in a copy of the tree, with a directory as package index and a registry on this machine."""

import hashlib
import os
import re
import subprocess

import pytest

from testbed.packages import find_lmod, find_optional
from testbed.stand_ins.registry import Registry

MACHINES = ("x86_64", "aarch64")
NEW_CPU = ["PyTorch-9.9.9-cpu-horovod-0.28.1-venv.eb", "PyTorch-9.9.9-cpu-singularity.eb", "PyTorch-9.9.9-cpu-venv.eb"]
NEW_CUDA = [f"PyTorch-9.9.9-cuda-14.1-{kind}.eb" for kind in ("horovod-0.28.1-venv", "perlmutter-venv", "venv")]


@pytest.fixture
def new_release(tree, testbed_root):
    """A function that runs ./new-release in the copy of the tree; returns the process."""
    if find_lmod() is None:
        pytest.skip("Lmod is not installed: ./run-tests without --fast installs it")

    def run(*arguments, **environment):
        return subprocess.run(
            [tree / "new-release", *arguments], env={**os.environ, "PYTORCH_TESTBED": str(testbed_root), **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.fixture
def release(index):
    """PyTorch 9.9.9 in the package index: for CPUs, and for CUDA 14.1."""
    compiled = [f"cp311-cp311-manylinux_2_28_{machine}" for machine in MACHINES]
    index("torch", "9.9.9+cpu", *compiled, requires=["numpy", "setuptools"])
    index("torch", "9.9.9", *compiled, requires=["numpy", "setuptools", "cuda-toolkit==14.1.2"])
    for name in ("torchvision", "torchaudio", "numpy", "matplotlib", "psutil", "pyyaml", "cffi", "py_spy"):
        index(name, "3.0", *compiled)
    index("numpy", "2.0", *compiled)
    index("cmake", "4.0", *compiled)
    index("cmake", "3.31", *compiled)
    for name in ("cuda_toolkit", "setuptools", "cloudpickle", "packaging"):
        index(name, "14.1.2" if name == "cuda_toolkit" else "1.0", "py3-none-any")
    return index.directory


def files(tree):
    """The content of all files of a tree, by path."""
    return {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip


@pytest.fixture
def docker_hub(tmp_path):
    """Settings with which skopeo finds Docker Hub on this machine, and the digest of PyTorch 9.9.9 there."""
    missing = [name for name in ("docker-registry", "skopeo") if not find_optional(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    layer, configuration = tmp_path / "layer.tar", tmp_path / "home/.config/containers/registries.conf"
    subprocess.run(["tar", "--create", "--file", layer, "--files-from", "/dev/null"], check=True)
    with Registry.start(tmp_path / "registry") as registry:
        digest = registry.push_layers([layer], "pytorch/pytorch", "9.9.9-cuda13.0-cudnn9-runtime")
        configuration.parent.mkdir(parents=True)
        lines = ["[[registry]]", 'prefix = "docker.io"', f'location = "{registry.address}"', "insecure = true", ""]
        configuration.write_text("\n".join(lines))
        yield {"HOME": str(tmp_path / "home")}, digest


def test_a_new_release_has_recipes_locks_and_the_lines_of_the_pages(new_release, release, tree):
    before = files(tree)
    process = new_release("9.9.9")
    assert process.returncode == 0, process.stdout + process.stderr
    after = files(tree)
    new = sorted(path.name for path in set(after) - set(before))
    locks = ["PyTorch-9.9.9-cpu-horovod-0.28.1.txt", "PyTorch-9.9.9-cpu.txt",
             "PyTorch-9.9.9-cuda-14.1-horovod-0.28.1.txt", "PyTorch-9.9.9-cuda-14.1.txt"]  # fmt: skip
    assert new == sorted([*NEW_CPU, *NEW_CUDA, *locks, "PyTorch-9.9.9-cpu.def"])
    changed = sorted(map(str, (path for path in before if after[path] != before[path])))
    assert changed == ["CHANGELOG.md", "docs/systems.md"]

    recipes = tree / "easyconfigs/p/PyTorch"
    lock = (recipes / "PyTorch-9.9.9-cpu.txt").read_text()
    wheels = [release / f"torch-9.9.9+cpu-cp311-cp311-manylinux_2_28_{machine}.whl" for machine in MACHINES]
    torch = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
    assert f"\ntorch==9.9.9+cpu --hash=sha256:{torch[0]} --hash=sha256:{torch[1]}\nnumpy==3.0 " in lock
    assert lock.startswith("# torch 9.9.9 for CPUs and matplotlib, with")
    assert re.search(r"^cmake==3\.31 ", (recipes / "PyTorch-9.9.9-cpu-horovod-0.28.1.txt").read_text(), re.MULTILINE)
    assert hashlib.sha256(lock.encode()).hexdigest() in (recipes / "PyTorch-9.9.9-cpu-singularity.eb").read_text()
    assert "version 9.9.9-cpu" in (recipes / "PyTorch-9.9.9-cpu.def").read_text()
    cuda = (recipes / "PyTorch-9.9.9-cuda-14.1-venv.eb").read_text()
    assert "versionsuffix = '-cuda-14.1-venv'" in cuda
    assert "It needs a driver for CUDA 14." in cuda

    assert "- Recipes for PyTorch 9.9.9: `cpu-horovod-0.28.1-venv`, " in (tree / "CHANGELOG.md").read_text()
    assert "| `9.9.9-cuda-14.1-perlmutter-venv` | Perlmutter" in (tree / "docs/systems.md").read_text()
    assert "PyTorch-9.9.9-cpu-venv.eb (2 lines differ from " in process.stdout
    assert "eb --check-contrib ... done" in process.stderr


def test_a_second_run_adds_what_was_out_of_reach_and_a_third_is_refused(new_release, release, tree, docker_hub):
    settings, digest = docker_hub
    recipes = tree / "easyconfigs/p/PyTorch"
    for path in recipes.glob("*.eb"):
        if not path.name.endswith(("-cpu-venv.eb", "-cuda-13.0-singularity.eb")):
            path.unlink()
    process = new_release("9.9.9", HOME=str(tree.parent / "no-home"))  # uv may create it
    assert process.returncode == 0, process.stdout + process.stderr
    assert "\nNot written:\n  after 2.14.0-cuda-13.0-singularity: docker://docker.io/pytorch/pytorch" in process.stdout
    process = new_release("9.9.9", **settings)
    assert process.returncode == 0, process.stdout + process.stderr
    text = (recipes / "PyTorch-9.9.9-cuda-13.0-singularity.eb").read_text()
    assert f"docker://docker.io/pytorch/pytorch:9.9.9-cuda13.0-cudnn9-runtime'\n         '@{digest}'" in text
    before = files(tree)
    again = new_release("9.9.9", **settings)
    assert again.returncode == 1
    assert "new-release: nothing was written: No recipe is older than PyTorch 9.9.9: " in again.stderr
    assert files(tree) == before


def test_an_index_without_the_release_or_without_a_machine_leaves_the_tree_as_it_was(new_release, release, tree):
    before = files(tree)
    process = new_release("9.9.8")
    assert (process.returncode, process.stdout) == (1, "")
    assert "new-release: nothing was written: No lock for Python 3.11 on x86_64: Because there is no" in process.stderr
    for wheel in release.glob("psutil*aarch64*"):
        wheel.unlink()
    process = new_release("9.9.9")
    assert process.returncode == 1
    assert "No lock for Python 3.11 on aarch64: " in process.stderr
    assert files(tree) == before


def test_recipes_that_easybuild_rejects_are_not_written(new_release, release, tree):
    recipe = next((tree / "easyconfigs/p/PyTorch").glob("PyTorch-*-cpu-venv.eb"))
    recipe.write_text(recipe.read_text() + "trailing = 'blanks'   \n")
    before = files(tree)
    process = new_release("9.9.9")
    assert process.returncode == 1
    assert re.search(r"eb --check-contrib rejects the new recipes:\n.*9\.9\.9-cpu-venv\.eb:21:20: W299", process.stderr)
    assert files(tree) == before

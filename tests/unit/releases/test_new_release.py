"""tools/new-release in a copy of the tree, with a directory as package index."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from distributions import sha256
from repository import TREE

pytestmark = pytest.mark.slow

RECIPES = Path("easyconfigs/p/PyTorch")
MACHINES = ("x86_64", "aarch64")
COMPILED = [f"cp311-cp311-manylinux_2_28_{machine}" for machine in MACHINES]
HOROVOD = ["-horovod-0.28.1-singularity.eb", "-horovod-0.28.1-venv.eb"]
NEW_CPU = ["-horovod-0.28.1.txt", "-singularity.eb", "-venv.eb", ".def", ".txt"]
NEW_CPU = [f"PyTorch-9.9.9-cpu{name}" for name in [*HOROVOD, *NEW_CPU]]
NEW_CUDA = ["-horovod-0.28.1.def", "-horovod-0.28.1.txt", "-perlmutter-venv.eb", "-venv.eb", ".txt"]
NEW_CUDA = [f"PyTorch-9.9.9-cuda-14.1{name}" for name in [*HOROVOD, *NEW_CUDA]]


@pytest.fixture
def tree(tmp_path):
    """A copy of what tools/new-release needs of this tree."""
    copy = tmp_path / "tree"
    for name in ("easyconfigs", "tools", "runscripts", "testbed"):
        shutil.copytree(TREE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def new_release(tree, testbed_root):
    """A function that runs tools/new-release in the copy of the tree; returns the process."""

    def run(*arguments):
        return subprocess.run(
            [tree / "tools" / "new-release", *arguments],
            env={**os.environ, "PYTORCH_TESTBED": str(testbed_root)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


@pytest.fixture
def release(index):
    """PyTorch 9.9.9 in the package index: for CPUs, and for CUDA 14.1."""
    index("torch", "9.9.9+cpu", *COMPILED, requires=["numpy", "setuptools"])
    index("torch", "9.9.9", *COMPILED, requires=["numpy", "setuptools", "cuda-toolkit==14.1.2"])
    for name in ("torchvision", "torchaudio", "numpy", "matplotlib", "psutil", "pyyaml", "cffi", "py_spy"):
        index(name, "3.0", *COMPILED, "cp314-cp314-manylinux_2_28_x86_64", "cp311-cp311-win_amd64")
    index("numpy", "2.0", *COMPILED)
    index("cmake", "4.0", *COMPILED)
    index("cmake", "3.31", *COMPILED)
    index("cuda_toolkit", "14.1.2", "py3-none-any")
    for name in ("setuptools", "cloudpickle", "packaging"):
        index(name, "1.0", "py3-none-any")
    return index.directory


def files(tree):
    """The content of all files of a tree, by path."""
    return {
        path.relative_to(tree): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def written(process):
    """The files that a run that succeeds prints."""
    assert process.returncode == 0, process.stdout + process.stderr
    return sorted(re.findall(r"^easyconfigs/p/PyTorch/(.*)$", process.stdout, re.MULTILINE))


def test_a_new_release_has_recipes_and_locks_and_a_second_run_adds_what_was_missing(new_release, release, tree):
    before = files(tree)
    recipes = tree / RECIPES
    for wheel in release.glob("torch-9.9.9+cpu-*"):
        wheel.rename(release.parent / wheel.name)
    process = new_release("9.9.9")
    assert written(process) == NEW_CUDA
    assert "new-release: no successor of PyTorch-2.13.0-cpu.txt: x86_64: " in process.stderr
    for wheel in release.parent.glob("torch-*.whl"):
        wheel.rename(release / wheel.name)
    assert written(new_release("9.9.9")) == NEW_CPU
    after = files(tree)
    assert sorted(path.name for path in set(after) - set(before)) == [*NEW_CPU, *NEW_CUDA]
    assert {path: after[path] for path in before} == before

    lock = (recipes / "PyTorch-9.9.9-cpu.txt").read_text()
    torch = [sha256(release / f"torch-9.9.9+cpu-{tag}.whl") for tag in COMPILED]
    numpy = [sha256(release / f"numpy-3.0-{tag}.whl") for tag in COMPILED]
    assert f"\ntorch==9.9.9+cpu --hash=sha256:{torch[0]} --hash=sha256:{torch[1]}\n" in lock
    assert f"\nnumpy==3.0 --hash=sha256:{numpy[0]} --hash=sha256:{numpy[1]}\n" in lock
    assert lock.startswith("# torch 9.9.9 for CPUs and matplotlib, with")
    assert "\n# machines: x86_64 aarch64\n" in lock
    assert re.search(r"^cmake==3\.31 ", (recipes / "PyTorch-9.9.9-cpu-horovod-0.28.1.txt").read_text(), re.MULTILINE)
    definition = recipes / "PyTorch-9.9.9-cpu.def"
    assert "version 9.9.9-cpu" in definition.read_text()
    for kind in ("cpu", "cpu-horovod-0.28.1"):
        cpu = (recipes / f"PyTorch-9.9.9-{kind}-singularity.eb").read_text()
        assert sha256(recipes / f"PyTorch-9.9.9-{kind}.txt") in cpu
        assert sha256(definition) in cpu
    assert "versionsuffix = '-cuda-14.1-venv'" in (recipes / "PyTorch-9.9.9-cuda-14.1-venv.eb").read_text()


def test_a_release_or_machine_that_the_index_lacks_and_a_file_of_ours_leave_the_tree_as_it_was(
    new_release, release, tree
):
    mine = tree / RECIPES / "PyTorch-9.9.9-cpu-venv.eb"
    mine.write_text("mine")
    before = files(tree)

    def is_refused(version, message):
        process = new_release(version)
        assert (process.returncode, process.stdout, files(tree)) == (1, "", before)
        assert message in process.stderr

    is_refused("9.9.9", f"new-release: nothing was written: {mine}: file exists. Remove it.")
    mine.unlink()
    before = files(tree)
    is_refused("9.9.8", "no successor of PyTorch-2.15.0-cuda-13.2.txt: x86_64: Because there is no")
    for wheel in release.glob("py_spy*aarch64*"):
        wheel.unlink()
    is_refused("9.9.9", "no successor of PyTorch-2.13.0-cpu.txt: aarch64: ")
    assert written(new_release("9.9.9", "--machine", "x86_64"))
    assert "\n# machines: x86_64\n" in (tree / RECIPES / "PyTorch-9.9.9-cpu.txt").read_text()

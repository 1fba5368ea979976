"""Which recipes a release follows, and the text of their successors."""

import pytest

from releases.recipes import Change, newest_of_each_kind, numbers, read_recipe

PUBLISHER = "the publisher of its image decides which PyTorch it has"
CUDA = Change("2.15.0", "2.16.1", "13.2", "14.0")


@pytest.fixture
def recipe(tmp_path):
    """A function that makes a recipe from its version, its suffix and other lines."""

    def make(version, suffix, *lines):
        path = tmp_path / "easyconfigs" / "p" / "PyTorch" / f"PyTorch-{version}{suffix}.eb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([f"version = '{version}'", f"versionsuffix = '{suffix}'", *lines, ""]))
        return read_recipe(path)

    return make


def test_of_each_kind_the_newest_recipe_is_followed(recipe, tmp_path):
    for version, suffix in (("2.9.1", "-cpu-venv"), ("2.13.0", "-cpu-venv"), ("2.15.0", "-cuda-13.2-venv"),
                            ("2.14.0", "-cuda-13.0-venv"), ("2.13.0", "-cpu-horovod-0.28.1-venv")):  # fmt: skip
        recipe(version, suffix)
    newest = sorted(found.name for found in newest_of_each_kind(tmp_path))
    assert newest == ["2.13.0-cpu-horovod-0.28.1-venv", "2.13.0-cpu-venv", "2.15.0-cuda-13.2-venv"]
    assert numbers("2.13.0") > numbers("2.9.1")


def test_files_beside_a_recipe_are_its_own_sources(recipe):
    sources = ["horovod.tar.gz", "%(name)s-%(version)s-cpu.def", "%(name)s-%(version)s-cpu.txt"]
    found = recipe("2.13.0", "-cpu-singularity", "toolchain = SYSTEM", f"sources = {sources}")
    found.lock.write_text("# CPUs\ntorch==2.13.0+cpu\n")
    assert found.lock.name == "PyTorch-2.13.0-cpu.txt"
    assert [path.name for path in found.files] == ["PyTorch-2.13.0-cpu.def"]
    assert found.obstacle is None
    found.lock.write_text("lightning==2.6.6\n")
    assert found.obstacle == "its lock is for the image that it builds on"


@pytest.mark.parametrize(
    ("lines", "obstacle"),
    [
        (["image = 'docker://docker.io/pytorch/pytorch:2.14.0-cuda13.0@sha256:0'"], None),
        (["image = 'docker://docker.io/rocm/pytorch:rocm7@sha256:0'"], PUBLISHER),
        (["image = 'lumi.sif'"], PUBLISHER),
        (["sources = [{'filename': 'PyTorch-2.14.0.yml'}]"], PUBLISHER),
        (["sources = ['PyTorch-2.14.0.txt']", "gpu = 'rocm'"], "the site's ROCm decides which wheels fit"),
    ],
)
def test_what_others_decide_is_not_followed(recipe, lines, obstacle):
    assert recipe("2.14.0", "-x", *lines).obstacle == obstacle


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("version = '2.15.0'", "version = '2.16.1'"),
        ("PyTorch-2.15.0-cuda-13.2.txt", "PyTorch-2.16.1-cuda-14.0.txt"),
        ("torch:2.15.0-cuda13.2-cudnn9-runtime", "torch:2.16.1-cuda14.0-cudnn9-runtime"),
        ("# torch 2.15.0 for CUDA 13.2, and more", "# torch 2.16.1 for CUDA 14.0, and more"),
        ("needs a driver for CUDA 13.\n", "needs a driver for CUDA 14.\n"),
        ("torch 2.15.0.", "torch 2.16.1."),
    ],
)
def test_versions_are_replaced(old, new):
    assert CUDA.apply(old) == new


@pytest.mark.parametrize("text", ["12.15.0", "2.15.01", "2.15.0.1", "CUDA 13.25", "horovod-0.28.1", "python-3.11"])
def test_other_numbers_stay(text):
    assert CUDA.apply(text) == text

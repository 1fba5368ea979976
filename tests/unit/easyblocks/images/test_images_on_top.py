"""Images on top of the image of an installed module: the base, what must fit it, and how the image is made."""

import json
from types import SimpleNamespace

import pytest
from distributions import sha256
from easybuild.easyblocks.generic.lockedvenv import Wheels
from easybuild.tools.build_log import EasyBuildError
from fake_images import sif

from pytorch_install import built_images
from pytorch_install.parameters import containerimage

pytestmark = pytest.mark.early

MODULE = "PyTorch/2.13.0-cpu-singularity"
ON_TOP = "builddependencies = [('PyTorch', '2.13.0', '-cpu-singularity')]\n"
HASH = "5d" * 32


@pytest.fixture
def installation(tmp_path):
    """A directory as an installed container module has it, with an image and its records."""
    directory = tmp_path / "installed"
    (directory / "provenance").mkdir(parents=True)
    image = directory / "base.sif"
    image.write_bytes(sif(b"image"))
    recipe = "PyTorch-2.13.0-cpu-singularity.eb"
    record = {
        "image": image.name,
        "sha256": sha256(image),
        "easyconfig": recipe,
        "python": "/opt/conda/bin/python3",
        "python_version": "3.11.2",
    }
    (directory / "provenance" / "image.json").write_text(json.dumps(record))
    (directory / "constraints.txt").write_text("# a comment\ntorch==2.13.0+cpu\npytorch-triton==3.1\n")
    return directory


@pytest.fixture
def installed(installation):
    """The Base of that installation."""
    return built_images.read_base(MODULE, str(installation), str(installation / "base.sif"))


@pytest.fixture
def source_of(container, runtime, installed, tmp_path):
    """A function that gives the image source of a recipe with some lines on top of that base, with its lock."""

    def make(lines="", lock=f"einops==0.8.2 --hash=sha256:{HASH}\n"):
        path = tmp_path / "lock.txt"
        path.write_text(lock)
        block = container(f"{ON_TOP}sources = ['lock.txt']\n{lines}")
        block.src = [{"name": "lock.txt", "path": str(path), "sha256": "11"}]
        block.wheels = Wheels(str(path), str(tmp_path / "wheels"))
        image = block.image
        image.builddir = str(tmp_path / "build")
        image.file = f"{image.builddir}/x.sif"
        image.base = installed
        return image

    return make


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (ON_TOP.replace("builddep", "dep"), "must name one image source, .*'builddependencies'; found: none"),
        (f"{ON_TOP}image = 'x.sif'", rf"must name one image source.*found: \.sif, {MODULE}"),
        (
            "sources = ['a.sif', 'b-1.0.tar.gz']\nsource_packages = [('b', {})]",
            "in an image that is made here, or on top",
        ),
    ],
)
def test_a_recipe_with_another_base_is_one_sentence(container, lines, message):
    with pytest.raises(EasyBuildError, match=message):
        container(lines)


def test_a_definition_file_can_be_built_on_the_image_of_the_module(container, installed, tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(containerimage, "run_command", lambda words, *_, **__: commands.append(words))
    app = container(f"{ON_TOP}sources = ['a.def']")
    (tmp_path / "a.def").write_text("Bootstrap: localimage\nFrom: {{ BASE }}\n")
    source = app.image
    app.src = [{"name": "a.def", "path": str(tmp_path / "a.def"), "sha256": "1"}]
    source.base = installed
    source.builddir = str(tmp_path / "b")
    source.build()
    assert f"BASE={installed.image}" in commands[0]
    assert source.identity.endswith(f"base={installed.record['sha256']}")


def test_pip_gets_the_versions_that_the_base_keeps(source_of, monkeypatch):
    commands = []

    def run(words, *_, **__):
        commands.append(words)
        return SimpleNamespace(exit_code=int("install" in words), output="(constraint) torch==2.13.0+cpu", stderr="")

    monkeypatch.setattr(built_images, "run_command", run)
    with pytest.raises(EasyBuildError, match=r"could not install lock.txt: \(constraint\) torch==2.13.0\+cpu. Correct"):
        source_of().build()
    assert commands[-1][-4:] == ["--constraint", "/media/constraints.txt", "-r", "/media/lock.txt"]


def test_the_identity_has_lock_and_base(source_of):
    source = source_of()
    assert "lock.txt=11" in source.identity and source.base.record["sha256"] in source.identity
    source.block.patches = [{"name": "a.patch", "sha256": "22"}]
    source.recipe["source_packages"] = [("b", {"A": "1"})]
    assert "a.patch=22" in source.identity and "source_packages=[('b', {'A': '1'})]" in source.identity


def test_packages_that_break_a_requirement_are_refused_unless_the_base_breaks_it_too(source_of, monkeypatch):
    def build(*checks):
        outputs = list(checks)

        def run(words, *_, **__):
            output = outputs.pop(0) if "check" in words else ""
            return SimpleNamespace(exit_code=bool(output), output=output, stderr="")

        monkeypatch.setattr(built_images, "run_command", run)
        source_of().build()

    broken = "a 1 requires b, which is not installed.\n"
    build(broken, broken)
    with pytest.raises(EasyBuildError, match=r"do not fit together: einops 0\.8\.2 requires c, .*Correct the lock"):
        build(broken, broken + "einops 0.8.2 requires c, which is not installed.\n")

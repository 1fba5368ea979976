"""Recipes, locks and images for other machines than the host."""

import hashlib
import platform
import struct
from pathlib import Path

import pytest
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.config import source_paths, update_build_option
from image_recipe import RECIPE

from pytorch_install.parameters import containerimage

# what the module's syntax is does not matter here
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
HERE = platform.machine()
#: As SIF headers have them.
CODES = {"x86_64": b"02", "aarch64": b"04", "unknown": b"00"}
DIGEST = "sha256:" + "5d" * 32


@pytest.fixture
def made(easyblock, tmp_path, monkeypatch):
    """A function that makes the easyblock of a recipe with some lines; EasyBuild's part of post_init is left out."""
    monkeypatch.setattr(EasyBlock, "post_init", lambda _: None)
    monkeypatch.setattr(containerimage, "find_runtime", lambda: "apptainer")

    def make(lines, kind="EB_PyTorchContainer"):
        recipe = tmp_path / "PyTorch-2.13.0-test.eb"
        recipe.write_text(RECIPE.format(lines=lines).replace("EB_PyTorchContainer", kind))
        return easyblock(recipe)

    return make


def sif(path, machine):
    """Write the header of a SIF image for a machine, and no data; return its path."""
    header = b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"01\0" + CODES[machine] + b"\0" + bytes(64)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header + struct.pack("<qq", 128, 0))
    return path


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("kind", ["EB_PyTorchContainer", "EB_PyTorchVenv", "EB_PyTorchShifter"])
def test_a_recipe_for_other_machines_is_one_sentence_before_anything_is_changed(made, monkeypatch, kind, dry_run):
    update_build_option("extended_dry_run", dry_run)
    image = "image = 'x.sif'" if kind != "EB_PyTorchVenv" else ""
    app = made(f"{image}\nmachines = ['{OTHER}']", kind)
    monkeypatch.setattr(app.installation, "recover", None)
    with pytest.raises(EasyBuildError) as caught:
        app.post_init()
    assert str(caught.value).strip("'") == (
        f"PyTorch-2.13.0-test.eb is for {OTHER}, and this host is {HERE}. "
        "Install it on such a host, or choose a recipe for this one"
    )


@pytest.mark.parametrize("machines", [[], [HERE], [OTHER, HERE]])
def test_a_recipe_for_this_host_or_any_is_installed(made, machines):
    made(f"image = 'x.sif'\nmachines = {machines}").post_init()


def test_a_lock_without_wheels_for_this_host_is_one_sentence_at_once(made, tmp_path):
    (tmp_path / "a.txt").write_text(f"# torch\n# machines: riscv64 {OTHER}\ntorch==2.13.0\n")
    app = made("sources = ['a.txt']", "EB_PyTorchVenv")
    with pytest.raises(EasyBuildError, match=rf"a\.txt is for riscv64 and {OTHER}, and this host is {HERE}\. Add "):
        app.post_init()
    for line in (f"# machines: x86_64 {HERE}", "# for any"):
        (tmp_path / "a.txt").write_text(f"{line}\ntorch==2.13.0\n")
        made("sources = ['a.txt']", "EB_PyTorchVenv").post_init()


def test_a_lock_on_the_source_path_is_checked_before_wheels_are_fetched(made, monkeypatch):
    monkeypatch.setattr("easybuild.easyblocks.generic.lockedvenv.fetch_wheels", None)
    path = Path(source_paths()[0]) / "p" / "PyTorch" / "a.txt"
    path.parent.mkdir(parents=True)
    path.write_text(f"# machines: {OTHER}\ntorch==2.13.0\n")
    app = made("sources = ['a.txt']", "EB_PyTorchVenv")
    app.fetch_sources()
    with pytest.raises(EasyBuildError, match=f"a.txt is for {OTHER}"):
        app.checksum_step()


def test_an_image_whose_header_names_no_machine_is_taken(made, tmp_path):
    path = sif(tmp_path / "central" / "x.sif", "unknown")
    app = made(f"image = 'x.sif'\ncentral_images = ['{path.parent}']")
    app.fetch_step()
    app.checksum_step()
    assert app.image.file == str(path)


def test_two_machines_that_share_a_source_path_have_a_download_each(made, monkeypatch):
    names = set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        names.add(made(f"image = 'docker://a/b@{DIGEST}'").image.file_name)
    assert names == {f"sha256-{'5d' * 32}.sif", f"sha256-{'5d' * 32}.aarch64.sif"}


def test_a_recipe_names_one_file_for_each_machine_as_in_easybuild(made, tmp_path):
    path = sif(tmp_path / "central" / f"x-{HERE}.sif", HERE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    checksums = {f"x-{OTHER}.sif": "0" * 64, path.name: digest}
    app = made(f"sources = ['x-%(arch)s.sif']\nchecksums = [{checksums}]\ncentral_images = ['{path.parent}']")
    app.fetch_sources()
    app.checksum_step()
    assert app.image.file == str(path)

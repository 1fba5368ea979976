"""Recipes, locks and images for other machines than the host."""

import hashlib
import platform

import pytest
from easybuild.easyblocks.generic.containerimage import require_image_format
from easybuild.framework.easyblock import EasyBlock
from easybuild.tools.build_log import EasyBuildError
from fake_images import sif

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
HERE = platform.machine()
CODES = {"x86_64": b"02", "aarch64": b"04"}


@pytest.fixture
def made(container, runtime, monkeypatch):
    """A function that makes the easyblock of a recipe with some lines; EasyBuild's part of post_init is left out."""
    monkeypatch.setattr(EasyBlock, "post_init", lambda _: None)
    return container


@pytest.mark.parametrize("kind", ["EB_PyTorchContainer", "EB_PyTorchVenv", "EB_PyTorchShifter"])
def test_a_recipe_for_other_machines_is_one_sentence_before_anything_is_changed(made, monkeypatch, kind):
    image = "image = 'x.sif'" if kind != "EB_PyTorchVenv" else ""
    app = made(f"{image}\nmachines = ['{OTHER}']", kind)
    monkeypatch.setattr(app.installation, "recover", None)
    with pytest.raises(EasyBuildError, match=rf"^PyTorch-2\.13\.0-test\.eb is for {OTHER}, and this host is {HERE}\. "):
        app.post_init()


def test_a_lock_without_wheels_for_this_host_is_one_sentence_at_once(made, tmp_path):
    (tmp_path / "a.txt").write_text(f"# torch\n# machines: riscv64 {OTHER}\ntorch==2.13.0\n")
    app = made("sources = ['a.txt']", "EB_PyTorchVenv")
    with pytest.raises(EasyBuildError, match=rf"a\.txt is for riscv64 and {OTHER}, and this host is {HERE}\. Add "):
        app.post_init()
    for line in (f"# machines: x86_64 {HERE}", "# for any"):
        (tmp_path / "a.txt").write_text(f"{line}\ntorch==2.13.0\n")
        made("sources = ['a.txt']", "EB_PyTorchVenv").post_init()


def test_an_image_for_another_machine_is_refused_and_one_whose_header_names_none_is_taken(made, tmp_path):
    path = tmp_path / "x.sif"
    path.write_bytes(sif(b"", machine=CODES[OTHER]))
    with pytest.raises(EasyBuildError, match=f"x.sif is an image for {OTHER}, and this host is {HERE}. Get the image"):
        require_image_format(str(path))
    path.write_bytes(sif(b"", machine=b"00"))
    app = made(f"image = 'x.sif'\ncentral_images = ['{tmp_path}']")
    app.fetch_step()
    app.checksum_step()
    assert app.image.file == str(path)


def test_a_recipe_names_one_file_for_each_machine_as_in_easybuild(made, tmp_path):
    path = tmp_path / "central" / f"x-{HERE}.sif"
    path.parent.mkdir()
    path.write_bytes(sif(b"", machine=CODES[HERE]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    checksums = {f"x-{OTHER}.sif": "0" * 64, path.name: digest}
    app = made(f"sources = ['x-%(arch)s.sif']\nchecksums = [{checksums}]\ncentral_images = ['{path.parent}']")
    app.fetch_sources()
    app.checksum_step()
    assert app.image.file == str(path)

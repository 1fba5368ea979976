"""Images in a recipe: references, files, environments, and their identity."""

import pytest
from easybuild.tools.build_log import EasyBuildError
from fake_images import DIGEST

# what the module's syntax is does not matter here
pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)


@pytest.mark.parametrize(
    ("reference", "uri"),
    [
        (f"docker://pytorch/pytorch@{DIGEST}", f"docker://pytorch/pytorch@{DIGEST}"),
        (f"docker://pytorch/pytorch:2.14.0-cuda@{DIGEST}", f"docker://pytorch/pytorch@{DIGEST}"),
        (f"docker://host.org:5000/a/b:1@{DIGEST}", f"docker://host.org:5000/a/b@{DIGEST}"),
    ],
)
def test_a_pinned_reference_is_given_to_the_runtime_without_its_tag(image_of, reference, uri):
    image = image_of(f"image = '{reference}'")
    assert image.uri == uri
    assert image.digest == DIGEST
    assert image.reference == reference


@pytest.mark.parametrize(
    ("reference", "advice"),
    [
        ("docker://pytorch/pytorch", r"`skopeo inspect --raw docker://pytorch/pytorch \| sha256sum`"),
        ("docker://pytorch/pytorch:latest", r"docker://pytorch/pytorch:latest \| sha256sum"),
        ("docker://pytorch/pytorch@sha256:5d5d", r"append '@sha256:<digest>'"),
        ("docker://host.org:5000/a/b:1", r"docker://host.org:5000/a/b:1 \| sha256sum"),
    ],
)
def test_the_error_for_an_unpinned_reference_reports_how_to_find_its_digest(image_of, reference, advice):
    with pytest.raises(EasyBuildError, match=rf"is not pinned.*{advice}"):
        image_of(f"image = '{reference}'")


@pytest.mark.parametrize("image", ["/appl/x.sif", "x.img", "shub://a/b", f"oras://a/b@{DIGEST}"])
def test_an_image_that_is_neither_reference_nor_file_name_is_refused(image_of, image):
    with pytest.raises(EasyBuildError, match="is neither a reference .* nor a file name"):
        image_of(f"image = '{image}'")


def test_the_help_names_what_run_starts(container):
    built, other = container("sources = ['a.def']"), container(f"image = 'docker://a/b@{DIGEST}'")
    assert "run` starts a command, or Python without one" in built.cfg["usage"]
    assert "run` starts its own entrypoint, if it has one" in other.cfg["usage"]


def test_an_environment_file_needs_a_base_image_with_a_digest(image_of):
    with pytest.raises(EasyBuildError, match="needs 'base_image'"):
        image_of("sources = ['env.yml']")
    with pytest.raises(EasyBuildError, match="base_image = 'docker://debian:12' is not pinned"):
        image_of("sources = ['env.yml']\nbase_image = 'docker://debian:12'")
    with pytest.raises(EasyBuildError, match="base_image = 'oras://a/b:1' does not begin with docker://"):
        image_of("sources = ['env.yml']\nbase_image = 'oras://a/b:1'")


def test_a_recipe_that_asks_for_a_signature_is_refused_with_what_to_write_instead(image_of):
    with pytest.raises(EasyBuildError, match=r"signatures are not checked\. Replace it with the image's SHA-256"):
        image_of("image = 'x.sif'\nsources = ['key.pem']\nsigning_key = 'key.pem'")


def test_the_identity_changes_with_the_content_only(image_of):
    def identity(lines, **sources):
        fetched = [{"name": name, "sha256": checksum} for name, checksum in sources.items()]
        return image_of(lines, sources=fetched).identity

    built = identity("sources = ['a.def']", a="1")
    assert built == identity("sources = ['a.def']\ngpu = 'cuda'", a="1")
    assert built != identity("sources = ['a.def']", a="2")
    assert built != identity("sources = ['a.def']\nmksquashfs_args = '-comp gzip'", a="1")
    fetched = identity(f"image = 'docker://a/b@{DIGEST}'")
    assert fetched == identity(f"image = 'docker://a/b:tag@{DIGEST}'")
    assert fetched != identity(f"image = 'docker://a/b@{DIGEST}'\nmksquashfs_args = '-comp gzip'")


def test_cotainr_is_not_started_where_its_singularity_is_missing(image_of, monkeypatch):
    image = image_of("sources = ['env.yml']\nbase_image = 'x.sif'")
    monkeypatch.setattr("pytorch_install.images.which", lambda name: name == "cotainr")
    with pytest.raises(EasyBuildError, match="singularity not found on PATH"):
        image.build()

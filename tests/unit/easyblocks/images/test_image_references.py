"""Images in a recipe: references, files, environments, and their identity."""

import pytest
from easybuild.tools.build_log import EasyBuildError
from fake_images import DIGEST

pytestmark = pytest.mark.early


@pytest.mark.parametrize(
    ("reference", "repository"),
    [
        (f"docker://pytorch/pytorch@{DIGEST}", "pytorch/pytorch"),
        (f"docker://pytorch/pytorch:2.14.0-cuda@{DIGEST}", "pytorch/pytorch"),
        (f"docker://host.org:5000/a/b@{DIGEST}", "host.org:5000/a/b"),
        (f"docker://host.org:5000/a/b:1@{DIGEST}", "host.org:5000/a/b"),
    ],
)
def test_a_pinned_reference_is_given_to_the_runtime_without_its_tag(image_of, reference, repository):
    image = image_of(f"image = '{reference}'")
    assert image.command("part", "cache")[0][-1] == f"docker://{repository}@{DIGEST}"
    assert (image.digest, image.reference) == (DIGEST, reference)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("image = 'docker://a/b'", r"is not pinned.*`skopeo inspect --raw docker://a/b \| sha256sum`"),
        ("image = 'docker://a/b@sha256:5d5d'", "expected docker://<repository>@sha256:<digest>"),
        ("image = '/appl/x.sif'", "is wrong: expected .* docker:// with its digest, or"),
        (f"image = 'oras://a/b@{DIGEST}'", "is wrong: expected .* docker:// with its digest, or"),
        ("sources = ['env.yml']", "needs 'base_image'"),
        ("sources = ['env.yml']\nbase_image = 'docker://debian:12'", "docker://debian:12 is not pinned"),
        ("sources = ['env.yml']\nbase_image = 'oras://a/b:1'", "oras://a/b:1 is not pinned to one image"),
    ],
)
def test_an_image_that_is_not_named_as_it_must_be_is_refused_with_advice(image_of, lines, message):
    with pytest.raises(EasyBuildError, match=message):
        image_of(lines)


def test_the_identity_changes_with_the_content_only(image_of):
    def identity(lines, **sources):
        fetched = [{"name": name, "sha256": checksum} for name, checksum in sources.items()]
        return image_of(lines, fetched).identity

    built = identity("sources = ['a.def']", a="1")
    fetched = identity(f"image = 'docker://a/b@{DIGEST}'")
    assert built == identity("sources = ['a.def']\ngpu = 'cuda'", a="1")
    assert built != identity("sources = ['a.def']", a="2")
    assert built != identity("sources = ['a.def']\nmksquashfs_args = '-comp gzip'", a="1")
    assert fetched == identity(f"image = 'docker://a/b:tag@{DIGEST}'")


@pytest.mark.parametrize(
    "lines",
    [
        "base_image = 'x.sif'",
        "sources = ['env.yml', 'y.sif']\nbase_image = 'x.sif'",
        "sources = ['env.yml']\nbase_image = 'x.sif'\nimage = 'y.sif'",
        "sources = ['a.def', 'y.sif']",
    ],
)
def test_two_images_and_a_base_alone_are_refused(container, runtime, lines):
    with pytest.raises(EasyBuildError, match=r"must name one image source|several sources that end in \.sif"):
        container(lines).require_image()

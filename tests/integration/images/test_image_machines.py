"""Images for another machine than the host: in a registry's index, alone in a registry, and as files."""

import struct
import tarfile

import pytest
from image_site import make_layer

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: Names of machines as registries have them, and the machine that hosts of this kind do not have.
OTHER = {"x86_64": ("arm64", "aarch64", 183), "aarch64": ("amd64", "x86_64", 62)}


@pytest.fixture
def other(machine):
    """The machine that this host is not: its name in registries, that of `uname -m`, its number in ELF files."""
    return OTHER[machine]


@pytest.fixture(scope="session")
def machine(testbed):
    return testbed.run("uname -m").strip()


@pytest.fixture
def foreign_layer(tmp_path, other):
    """A layer whose shell is a program for the other machine."""
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, other[2], 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
    (tmp_path / "sh").write_bytes(header)
    (tmp_path / "sh").chmod(0o755)
    with tarfile.open(tmp_path / "foreign", "w") as archive:
        archive.add(tmp_path / "sh", "bin/sh")
    return tmp_path / "foreign"


def test_the_digest_of_an_index_is_the_image_for_this_host(site, registry, other, foreign_layer, tmp_path, testbed):
    own = {"arm64": "amd64", "amd64": "arm64"}[other[0]]
    images = {other[0]: [foreign_layer], own: [make_layer(tmp_path / "own", 1000)]}
    digest = registry.add_index(images)
    site.install(f"image = 'docker://{registry.address}/tiny/index:1@{digest}'", "--fetch")
    (image,) = site.images.glob("*.sif")
    assert image.name.startswith(digest.replace(":", "-"))
    content = testbed.run(
        f"""number=$(apptainer sif list {image} | awk '/Squashfs/ {{ print $1 }}')
apptainer sif dump $number {image} > {tmp_path}/squashfs
unsquashfs -l {tmp_path}/squashfs"""
    )
    assert "squashfs-root/own\n" in content
    assert "squashfs-root/bin/sh\n" not in content


def test_an_index_without_an_image_for_this_host_is_one_line(site, registry, other, foreign_layer):
    digest = registry.add_index({other[0]: [foreign_layer]})
    error = site.refuse(f"image = 'docker://{registry.address}/tiny/others:1@{digest}'", "--fetch")
    assert "no child with platform" in error or "no image found" in error

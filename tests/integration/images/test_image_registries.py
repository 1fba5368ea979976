"""Images of registries, as OCI layers: behind a login, and installed without the registry."""

import os
import struct

import pytest
from image_site import make_layer, sha256

from testbed.recipes import VERSION
from testbed.stand_ins.registry import ENVIRONMENT, Registry
from testbed.stand_ins.systems import IN_IMAGE

pytestmark = pytest.mark.testbed

LZ4 = 5  # the number of the compression in a SquashFS superblock
PASSWORD = "s3cret-of-the-registry"  # noqa: S105 (of a registry that lives as long as a test)
# perl -e 'print crypt("s3cret-of-the-registry", q($2b$05$abcdefghijklmnopqrstuu))'
BCRYPT = "$2b$05$abcdefghijklmnopqrstuuW1e3orFpi1hSyUIjjQsvB7886Cb.S5."


@pytest.mark.parametrize("login", ["variables", pytest.param("file", marks=pytest.mark.thorough)])
def test_a_registry_with_a_login_is_used_and_no_log_has_the_password(site, testbed, tmp_path, registry, login, work):
    home = work / "home"
    home.mkdir()
    htpasswd = tmp_path / "htpasswd"
    htpasswd.write_text(f"user:{BCRYPT}\n")
    with Registry.start(tmp_path / "open") as filled:
        digest = filled.push_layers([make_layer(tmp_path / "layer", 1000)], "tiny/private", "1")
    with Registry.start(tmp_path / "open", htpasswd=htpasswd) as private:
        lines = f"image = 'docker://{private.address}/tiny/private@{digest}'"
        environ = {"HOME": str(home)}
        assert "Log in with" in site.refuse(lines, environ=environ)
        if login == "variables":
            environ.update(APPTAINER_DOCKER_USERNAME="user", APPTAINER_DOCKER_PASSWORD=PASSWORD)
        else:
            testbed.run(
                f"HOME={home} apptainer registry login --username user --password {PASSWORD} docker://{private.address}",
                environ={**os.environ, **ENVIRONMENT},
            )
        logs = work / "logs"
        message = site.install(lines, f"--fetch --tmpdir={logs} --disable-cleanup-tmpdir", environ=environ)
    assert PASSWORD not in message
    kept = [path for path in [*logs.rglob("*.log"), *site.images.iterdir()] if path.is_file()]
    assert any(path.suffix == ".log" for path in kept)
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


def test_an_image_that_was_fetched_is_installed_without_the_registry(site, work, registry, pytorch_sif, packages):
    with Registry.start(work / "registry") as shut_down:
        digest = shut_down.push_sif(pytorch_sif, "pytorch/pytorch", VERSION, without=[f".{IN_IMAGE}/*"])
        lines = f"image = 'docker://{shut_down.address}/pytorch/pytorch:{VERSION}@{digest}'"
        site.install(lines, "--fetch")
    site.install(lines, settings=packages)
    record = site.record()
    assert record["digest"] == digest
    assert record["source"] in lines
    assert record["sha256"] == sha256(site.root / record["image"])
    # packed like images that are built here, as Apptainer's own packing slows down every import; for the fields see
    # https://dr-emann.github.io/squashfs/
    with (site.root / record["image"]).open("rb") as file:
        superblock = file.read(1_000_000).partition(b"hsqs")[2]
    fragments, compression = struct.unpack_from("<IH", superblock, 12)
    assert (fragments, compression) == (0, LZ4)
    imported = site.shell("conda-python-simple -c 'import torch; print(torch.__version__)'", settings=packages)
    assert imported.stdout.strip() == f"{VERSION}+cpu"

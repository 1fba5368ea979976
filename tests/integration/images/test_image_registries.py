"""Images of registries and libraries: as OCI layers, as files (ORAS, library), behind a login."""

import contextlib
import http.server
import json
import os
import struct
import threading

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


def test_an_image_of_oras_is_installed_as_the_file_that_was_pushed(site, registry, tiny):
    digest = registry.push_oras(tiny, "tiny/oras", "1")
    site.install(f"image = 'oras://{registry.address}/tiny/oras:1@{digest}'", "--fetch")
    assert sha256(site.images / f"{digest.replace(':', '-')}.sif") == sha256(tiny)


def test_an_image_of_a_library_whose_hash_does_not_match_is_refused(site, tiny, work):
    with serve_library(tiny, work) as home:
        name = "library://site/default/tiny:sha256."
        error = site.refuse(f"image = '{name}{'0' * 64}'", environ={"HOME": str(home)})
        assert "Download it again, or correct the recipe" in error
        site.install(f"image = '{name}{sha256(tiny)}'", "--fetch", environ={"HOME": str(home)})
    assert sha256(site.images / f"sha256-{sha256(tiny)}.sif") == sha256(tiny)


@contextlib.contextmanager
def serve_library(sif, work):
    """Serve a library with one image under every name; yield a home directory that is configured for it."""

    class Library(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answers = {
                "/assets/config/": json.dumps(dict.fromkeys(("libraryAPI", "keystoreAPI"), {"uri": address})).encode(),
                "/v1/images/": json.dumps({"data": {"hash": f"sha256.{sha256(sif)}", "uploaded": True}}).encode(),
                "/v1/imagefile/": sif.read_bytes(),
            }
            body = next((answer for path, answer in answers.items() if self.path.startswith(path)), None)
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Library) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote = work / "home" / ".apptainer" / "remote.yaml"
        remote.parent.mkdir(parents=True)
        remote.write_text(f"Active: site\nRemotes:\n  site:\n    URI: {address[5:]}\n    Insecure: true\n")
        remote.chmod(0o600)
        yield work / "home"
        server.shutdown()


@pytest.mark.parametrize("login", ["variables", "file"])
def test_a_registry_with_a_login_is_used_and_no_log_has_the_password(
    site, testbed, tmp_path, registry, login, work
):
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


def test_an_image_that_was_fetched_is_installed_without_the_registry(
    site, work, registry, pytorch_sif, packages
):
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

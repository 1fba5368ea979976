"""Images of every kind of source: files of the site, a real registry on loopback, cotainr; and what is refused."""

import contextlib
import hashlib
import http.server
import json
import os
import struct
import tarfile
import threading
import time
from pathlib import Path

import pytest

from testbed.packages import find_optional
from testbed.registry import ENVIRONMENT, CuttingProxy, Registry
from testbed.stand_ins import IN_IMAGE

RECIPE = """easyblock = 'EB_PyTorchContainer'
name = 'PyTorch'
version = '2.13.0'
versionsuffix = '-test'
homepage = 'https://pytorch.org'
description = 'Test.'
toolchain = SYSTEM
{lines}
moduleclass = 'ai'
"""

LZ4 = 5  # the number of the compression in a SquashFS superblock
PASSWORD = "s3cret-of-the-registry"  # noqa: S105 (of a registry that lives as long as a test)
# perl -e 'print crypt("s3cret-of-the-registry", q($2b$05$abcdefghijklmnopqrstuu))'
BCRYPT = "$2b$05$abcdefghijklmnopqrstuuW1e3orFpi1hSyUIjjQsvB7886Cb.S5."


class Site:
    """An EasyBuild prefix of its own, with one recipe whose lines a test gives."""

    def __init__(self, testbed, directory):
        self.testbed = testbed
        self.directory = directory
        self.central = directory / "central"
        self.sources = directory / "sources"
        self.images = self.sources / "p" / "PyTorch" / "images"
        self.recipe = directory / "PyTorch-2.13.0-test.eb"
        self.root = directory / "software" / "PyTorch" / "2.13.0-test"
        self.central.mkdir()

    def eb(self, lines, options="", *, environ=None, settings=""):
        """Run EasyBuild on the recipe with these lines, after some in the shell; return the completed process."""
        self.recipe.write_text(RECIPE.format(lines=lines))
        paths = f"--installpath={self.directory} --buildpath={self.directory}/build --sourcepath={self.sources}"
        paths += f" --tmpdir={self.directory}/temporary"  # what EasyBuild keeps of failures goes with the test
        environ = {**os.environ, **ENVIRONMENT, **(environ or {})}
        script = f"{settings}\neb {paths} {options} {self.recipe}"
        return self.testbed.run_unchecked(script, environ=environ, timeout=900)

    def install(self, lines, options="", **keywords):
        """Run EasyBuild, which must succeed; return what it said."""
        result = self.eb(lines, options, **keywords)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    def refuse(self, lines, options="", **keywords):
        """Run EasyBuild, which must end with one line and leave nothing; return that line."""
        before = self.module_files()
        result = self.eb(lines, options, **keywords)
        assert result.returncode != 0, result.stdout
        errors = [line for line in result.stdout.splitlines() + result.stderr.splitlines() if line.startswith("ERROR")]
        assert len(errors) == 1, result.stdout + result.stderr
        assert self.module_files() == before
        assert not [path for path in (self.directory / "software").rglob("*.sif*") if path.is_file()]
        assert not list(self.directory.rglob("*.part"))
        return errors[0]

    def module_files(self):
        """Module files that users would see."""
        return sorted((self.directory / "modules").rglob("*2.13.0-test*"))

    def shell(self, script, *, settings=":"):
        """Run a script with the module loaded, after some lines in the shell."""
        load = f"module use {self.directory}/modules/all; module load PyTorch/2.13.0-test || exit 9"
        return self.testbed.run_unchecked(f"{settings}\n{load}\n{script}")

    def record(self):
        """What was recorded about the installed image."""
        return json.loads((self.root / "provenance" / "image.json").read_text())


@pytest.fixture
def site(testbed, work):
    """A site without any image."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    return Site(testbed, work)


@pytest.fixture(scope="module")
def pytorch_sif(testbed, container):
    """The image of the installed CPU container module."""
    return Path(testbed.run(f"module load {container}; printf %s $SIF"))


@pytest.fixture(scope="module")
def packages(testbed, venv):
    """The Python packages of the installed CPU venv, which has the torch of the CPU image."""
    return next((testbed.layout.easybuild / "software" / venv).glob("venv/lib/python*/site-packages"))


@pytest.fixture(scope="module")
def tiny(testbed, tmp_path_factory):
    """A small image in which nothing runs, for what is decided before anything would."""
    if testbed.obstacle:
        pytest.skip(f"no containers here: {testbed.obstacle}")
    directory = tmp_path_factory.mktemp("tiny")
    root = directory / "root"
    root.mkdir()
    (root / "content").write_bytes(os.urandom(200_000))
    (directory / "tiny.def").write_text(f"Bootstrap: localimage\nFrom: {root}\n")
    testbed.run(f"apptainer --silent build {directory}/tiny.sif {directory}/tiny.def")
    return directory / "tiny.sif"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry on loopback with an image of five layers, tiny/layers:1, whose digest is `registry.layers`."""
    for package in ("docker-registry", "skopeo"):
        if not find_optional(package):
            pytest.skip(f"{package} is not installed: `python3 testbed optional` installs it")
    directory = tmp_path_factory.mktemp("registry")
    layers = [make_layer(directory / f"layer{number}", 1_000_000) for number in range(5)]
    with Registry.start(directory) as registry:
        registry.layers = registry.push_layers(layers, "tiny/layers", "1")
        yield registry


def make_layer(path, size):
    """A layer that holds one file, which nothing compresses, under the layer's own name."""
    content = path.with_suffix(".content")
    content.write_bytes(os.urandom(size))
    with tarfile.open(path, "w") as archive:
        archive.add(content, arcname=path.name)
    return path


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def flip_a_bit(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_an_image_of_a_central_directory_is_installed_recorded_and_checked_by_a_command(site, pytorch_sif):
    central = site.central / "site-pytorch.sif"
    os.link(pytorch_sif, central)
    lines = f"image = '{central.name}'\ncentral_images = ['{site.central}']"
    site.install(lines)
    installed = site.root / central.name
    checksum = sha256(central)
    assert sha256(installed) == checksum
    assert not list(site.sources.rglob("*.sif"))
    assert (site.images / f"{central.name}.sha256").read_text() == f"{checksum}  {central.name}\n"
    record = site.record()
    assert record["sha256"] == checksum
    assert record["size"] == central.stat().st_size
    assert record["source"] == central.name
    assert record["easyconfig"] == site.recipe.name

    bill = json.loads((site.root / "provenance" / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    urls = [component["purl"] for component in bill["components"]]
    assert "pkg:pypi/torch@2.13.0%2Bcpu" in urls
    assert any(url.startswith("pkg:deb/debian/libc6@") for url in urls)
    assert len(urls) == len(set(urls))

    checked = site.shell("check-image")
    assert checked.returncode == 0, checked.stderr
    assert f"{installed} is as it was installed" in checked.stdout

    flip_a_bit(installed, 200_000_000)
    damaged = site.shell("check-image")
    assert damaged.returncode == 1
    assert f"{installed} has SHA-256" in damaged.stderr
    assert damaged.stderr.count("\n") == 1

    os.truncate(installed, 1_000_000)
    truncated = site.shell("check-image")
    assert truncated.returncode == 1
    assert "has 1000000 bytes, expected" in truncated.stderr

    installed.unlink()
    elsewhere = site.shell("check-image")
    assert elsewhere.returncode == 0, elsewhere.stderr
    assert f"{central} is as it was installed" in elsewhere.stdout


def test_another_image_than_that_of_the_first_installation_is_refused_until_the_recipe_names_its_checksum(site, tiny):
    image = site.central / "tiny.sif"
    image.write_bytes(tiny.read_bytes())
    lines = f"image = 'tiny.sif'\ncentral_images = ['{site.central}']"
    site.images.mkdir(parents=True)
    note = site.images / "tiny.sif.sha256"  # as the test above finds it after an installation
    note.write_text(f"{sha256(image)}  tiny.sif\n")
    site.install(lines, "--fetch")
    flip_a_bit(image, image.stat().st_size - 100_000)
    error = site.refuse(lines)
    assert "is not the image that was installed before" in error
    site.install(f"{lines}\nimage_checksum = '{sha256(image)}'", "--fetch")


@pytest.mark.parametrize(
    ("harm", "lines", "message"),
    [
        ("truncate", "image = 'tiny.sif'", "is truncated: it has"),
        ("flip", "image = 'tiny.sif'\nimage_checksum = '{checksum}'", "damaged or another image"),
        ("flip", "sources = ['tiny.sif']\nchecksums = ['{checksum}']", "Checksum verification"),
        ("truncate", "sources = ['tiny.sif']\nchecksums = ['{checksum}']", "Checksum verification"),
        ("empty", "image = 'tiny.sif'", "is not an image in Singularity's format"),
        ("superblock", "image = 'tiny.sif'", "does not start"),
        ("remove", "image = 'tiny.sif'", "There is no image tiny.sif in central_images"),
    ],
)
def test_a_damaged_image_is_refused_with_one_line_and_the_next_eb_takes_a_whole_one(site, tiny, harm, lines, message):
    image = site.central / "tiny.sif"
    image.write_bytes(tiny.read_bytes())
    lines = lines.format(checksum=sha256(image)) + f"\ncentral_images = ['{site.central}']"
    size = image.stat().st_size
    if harm == "truncate":
        os.truncate(image, size - 100_000)
    elif harm == "flip":
        flip_a_bit(image, size - 100_000)
    elif harm == "superblock":
        flip_a_bit(image, image.read_bytes().index(b"hsqs"))
    elif harm == "empty":
        image.write_bytes(b"")
    else:
        image.unlink()
    error = site.refuse(lines)
    assert message in error
    assert "executable file not found" not in error  # which is what it says of the whole image
    image.write_bytes(tiny.read_bytes())
    site.install(lines, "--fetch")


@pytest.mark.parametrize("kind", ["pem", "asc"])
def test_only_an_image_signed_with_the_key_that_the_recipe_names_is_taken(site, testbed, tiny, work, kind):
    image = site.central / "tiny.sif"
    keys = {owner: make_key(testbed, work, owner, kind) for owner in ("site", "stranger")}
    key = site.directory / f"key.{kind}"
    key.write_bytes(keys["site"]["public"].read_bytes())
    lines = f"""sources = ['{key.name}']
checksums = ['{sha256(key)}']
signing_key = '{key.name}'
image = 'tiny.sif'
central_images = ['{site.central}']"""
    image.write_bytes(tiny.read_bytes())
    assert "is not signed with the key that the recipe names" in site.refuse(lines)
    testbed.run(keys["stranger"]["sign"].format(image=image))
    assert "is not signed with the key that the recipe names" in site.refuse(lines)
    image.write_bytes(tiny.read_bytes())
    testbed.run(keys["site"]["sign"].format(image=image))
    site.install(lines, "--fetch")


def make_key(testbed, work, owner, kind):
    """A key pair: path of the public key, command that signs an {image}."""
    directory = work / f"key-{owner}"
    directory.mkdir(mode=0o700)
    public = directory / f"public.{kind}"
    if kind == "pem":
        testbed.run(f"cd {directory}; openssl genrsa -out secret 2048; openssl rsa -in secret -pubout -out {public}")
        return {"public": public, "sign": f"apptainer sign --key {directory}/secret {{image}}"}
    testbed.run(f"""cd {directory}; export GNUPGHOME=$PWD APPTAINER_KEYSDIR=$PWD/keyring
gpg --batch --quiet --passphrase '' --quick-generate-key '{owner} <{owner}@example.org>' rsa2048 sign never
gpg --armor --export > {public}; gpg --armor --export-secret-keys > secret
mkdir -m 700 keyring; apptainer key import secret; gpgconf --kill all""")
    return {"public": public, "sign": f"APPTAINER_KEYSDIR={directory}/keyring apptainer sign {{image}}"}


def test_a_download_is_kept_and_used_again_without_the_registry(site, registry):
    lines = f"image = 'docker://{registry.address}/tiny/layers:1@{registry.layers}'"
    site.install(lines, "--fetch")
    names = sorted(path.name for path in site.images.iterdir())
    image = registry.layers.replace(":", "-") + ".sif"
    assert names == [".lock", image, image + ".json"]
    requests = registry.log.read_text().count("GET")
    assert "found at" in site.install(lines, "--fetch")
    assert registry.log.read_text().count("GET") == requests

    flip_a_bit(site.images / image, 500_000)
    assert "is damaged" in site.install(lines, "--fetch")
    assert registry.log.read_text().count("GET") > requests
    assert "found at" in site.install(lines, "--fetch")


def test_a_download_cut_at_half_goes_on_with_the_layers_that_are_missing(site, registry):
    def kept():
        """Digests of the layers that are complete in the cache."""
        blobs = [path for path in site.images.glob("*.cache/cache/blob/blobs/sha256/*") if len(path.name) == 64]
        return {f"sha256:{path.name}" for path in blobs if path.stat().st_size > 900_000}

    with CuttingProxy(registry, whole=3, cut_when=lambda: len(kept()) >= 2) as proxy:
        lines = f"image = 'docker://{proxy.address}/tiny/layers@{registry.layers}'"
        error = site.refuse(lines)
        assert "failed 3 times" in error
        assert not list(site.images.glob("*.sif"))
        complete = kept()
        proxy.completed.clear()
        proxy.whole = None
        site.install(lines, "--fetch")
        assert proxy.completed
        assert not complete & set(proxy.completed)
    assert not list(site.images.glob("*.cache"))


def test_a_registry_that_stalls_in_the_middle_of_a_blob_is_given_up_with_a_sentence_and_then_only_the_rest_is_fetched(
    site, registry
):
    ended = threading.Event()
    with CuttingProxy(registry, whole=3, cut_when=ended.is_set) as proxy:
        lines = f"image = 'docker://{proxy.address}/tiny/layers@{registry.layers}'"
        start = time.monotonic()
        error = site.refuse(lines, "--download-timeout=0.5")
        assert time.monotonic() - start < 60
        assert f"failed 3 times: {proxy.address} stalled at sha256:" in error
        assert "less than 1 kB/s arrived for 3 s, after" in error
        assert not list(site.images.glob("*.sif"))
        ended.set()
        proxy.whole = None
        site.install(lines, "--fetch")


def test_the_users_own_cache_directory_is_used_and_left_alone(site, registry, work):
    cache = work / "cache"
    lines = f"image = 'docker://{registry.address}/tiny/layers@{registry.layers}'"
    site.install(lines, "--fetch", environ={"APPTAINER_CACHEDIR": str(cache)})
    assert [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 900_000]
    assert not list(site.images.glob("*.cache"))


def test_the_proxy_of_the_environment_is_asked(site, registry):
    with CuttingProxy(registry) as proxy:
        lines = f"image = 'docker://registry.invalid/tiny/layers@{registry.layers}'"
        site.install(lines, "--fetch", environ={"HTTP_PROXY": f"http://{proxy.address}"})
        assert len(proxy.completed) == 6  # five layers and the configuration


def test_a_digest_that_the_registry_lacks_is_one_line_at_the_first_attempt(site, registry):
    wrong = "sha256:" + "0" * 64
    for transport in ("docker", "oras"):
        error = site.refuse(f"image = '{transport}://{registry.address}/tiny/layers:1@{wrong}'")
        assert "The registry has no image" in error
        assert "look up the digest again" in error


def test_a_registry_that_does_not_answer_is_one_line_after_three_attempts(site):
    error = site.refuse(f"image = 'docker://127.0.0.1:9/tiny/layers@sha256:{'0' * 64}'")
    assert "failed 3 times" in error
    assert "connection refused" in error


def test_an_image_of_oras_is_installed_as_the_file_that_was_pushed(site, registry, tiny):
    digest = registry.push_oras(tiny, "tiny/oras", "1")
    site.install(f"image = 'oras://{registry.address}/tiny/oras:1@{digest}'", "--fetch")
    assert sha256(site.images / f"{digest.replace(':', '-')}.sif") == sha256(tiny)


def test_a_library_that_sends_another_image_than_that_of_the_hash_is_refused(site, tiny, work):
    with serve_library(tiny, work) as home:
        name = "library://site/default/tiny:sha256."
        error = site.refuse(f"image = '{name}{'0' * 64}'", environ={"HOME": str(home)})
        assert "damaged or another image" in error
        site.install(f"image = '{name}{sha256(tiny)}'", "--fetch", environ={"HOME": str(home)})
    assert sha256(site.images / f"sha256-{sha256(tiny)}.sif") == sha256(tiny)


@contextlib.contextmanager
def serve_library(sif, work):
    """Stand in for a library that has one image, whatever it is asked for; yields the home directory that knows it."""

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
def test_a_registry_that_wants_a_login_gets_it_and_no_log_has_the_password(
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
        assert "log in with" in site.refuse(lines, environ=environ)
        if login == "variables":
            environ.update(APPTAINER_DOCKER_USERNAME="user", APPTAINER_DOCKER_PASSWORD=PASSWORD)
        else:
            testbed.run(
                f"HOME={home} apptainer registry login --username user --password {PASSWORD} docker://{private.address}",
                environ={**os.environ, **ENVIRONMENT},
            )
        logs = work / "logs"
        said = site.install(lines, f"--fetch --tmpdir={logs} --disable-cleanup-tmpdir", environ=environ)
    assert PASSWORD not in said
    kept = [path for path in [*logs.rglob("*.log"), *site.images.iterdir()] if path.is_file()]
    assert any(path.suffix == ".log" for path in kept)
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


def test_an_image_of_a_registry_is_fetched_first_and_installed_without_the_registry(
    site, work, registry, pytorch_sif, packages
):
    with Registry.start(work / "registry") as shut_down:
        digest = shut_down.push_sif(pytorch_sif, "pytorch/pytorch", "2.13.0", without=[f".{IN_IMAGE}/*"])
        lines = f"image = 'docker://{shut_down.address}/pytorch/pytorch:2.13.0@{digest}'"
        site.install(lines, "--fetch")
    bind = f"export SINGULARITY_BIND={packages}:{IN_IMAGE}"  # so that the image is a tenth of its size
    site.install(lines, settings=bind)
    record = site.record()
    assert record["digest"] == digest
    assert record["source"] in lines
    assert record["sha256"] == sha256(site.root / record["image"])
    # packed as the images that are built here, as Apptainer's own packing costs every import; for the fields see
    # https://dr-emann.github.io/squashfs/
    with (site.root / record["image"]).open("rb") as file:
        superblock = file.read(1_000_000).partition(b"hsqs")[2]
    fragments, compression = struct.unpack_from("<IH", superblock, 12)
    assert (fragments, compression) == (0, LZ4)
    imported = site.shell("conda-python-simple -c 'import torch; print(torch.__version__)'", settings=bind)
    assert imported.stdout.strip() == "2.13.0+cpu"


def test_cotainr_gets_a_command_that_it_takes_and_its_image_is_installed(site, testbed, pytorch_sif, work):
    os.link(pytorch_sif, site.central / "base.sif")
    stand_in = work / "bin" / "cotainr"
    stand_in.parent.mkdir()
    stand_in.symlink_to(testbed.layout.repository / "testbed" / "cotainr")
    lines = cotainr_recipe(site)
    # the real one is among the test tools, which may be on the PATH
    without = f"PATH=$(echo $PATH | tr : '\\n' | grep -vxF {testbed.layout.test_venv}/bin | paste -sd :)"
    assert "cotainr is not on PATH" in site.refuse(lines, settings=without)
    site.install(lines, settings=f"export PATH={stand_in.parent}:$PATH COTAINR_STAND_IN_SIF={pytorch_sif}")
    assert site.record()["source"] == "environment.yml on base.sif"
    assert sha256(site.root / site.record()["image"]) == sha256(pytorch_sif)


def test_the_real_cotainr_comes_to_its_first_download(site, testbed, pytorch_sif, work):
    os.link(pytorch_sif, site.central / "base.sif")
    (work / "bin").mkdir()
    (work / "bin" / "cotainr").symlink_to(testbed.layout.test_venv / "bin" / "cotainr")
    settings = f"export PATH={work}/bin:$PATH https_proxy=http://127.0.0.1:9"
    error = site.refuse(cotainr_recipe(site), settings=settings)
    assert "cotainr could not make the image" in error
    assert "Connection refused" in error


def cotainr_recipe(site):
    """The lines of a recipe with an environment file and a base image."""
    environment = site.directory / "environment.yml"
    environment.write_text("dependencies:\n- python=3.11\n")
    return f"""sources = ['environment.yml']
checksums = ['{sha256(environment)}']
base_image = 'base.sif'
central_images = ['{site.central}']"""

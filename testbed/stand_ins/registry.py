"""Runs a real OCI registry on the loopback interface, filled with skopeo."""

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

from testbed.layout import Layout
from testbed.packages import find_command
from testbed.progress import run
from testbed.stand_ins.small_image import write_files

#: The environment of a client: the registry has plain HTTP.
ENVIRONMENT = {"APPTAINER_NOHTTPS": "1", "SINGULARITY_NOHTTPS": "1"}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
#: Files that Apptainer adds to an image.
OF_APPTAINER = ("./.singularity.d", "./singularity", "./.run", "./.exec", "./.shell", "./.test", "./environment")
START_SECONDS = 120


class Registry:
    """A running ``docker-registry``; ``with Registry.start(directory) as registry:`` stops it.

    Attributes
    ----------
    address : str
        ``127.0.0.1:<port>``, for ``docker://<address>/...``.
    log : Path
        The registry's log, one line for each request.
    """

    def __init__(self, directory, process, port):
        self.directory = directory
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self.log = directory / "registry.log"

    @classmethod
    def start(cls, directory, *, htpasswd=None):
        """Start a registry that stores its blobs in `directory`, and serves those that are there.

        If users have to log in, `htpasswd` is the path of the password file (bcrypt).
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        reserved = socket.socket()  # it does not listen: no other process receives its port, but the registry does
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        configuration = {
            "version": 0.1,
            "log": {"accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(directory / "registry")}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        if htpasswd:
            configuration["auth"] = {"htpasswd": {"realm": "testbed", "path": str(htpasswd)}}
        file = directory / "registry.json"  # YAML, of which JSON is a part
        file.write_text(json.dumps(configuration))
        with (directory / "registry.log").open("a") as log:
            process = subprocess.Popen(
                [find_command("docker-registry"), "serve", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        registry = cls(directory, process, port)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    reserved.close()
                    return registry
            time.sleep(0.05)
        reserved.close()
        registry.stop()
        raise RuntimeError(f"docker-registry did not start: {registry.log.read_text()}")

    def stop(self):
        """Stop the registry and keep its blobs."""
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def push_layers(self, layers, repository, tag, *, environment=(), architecture="amd64"):
        """Push tar files as the layers of an image, moving the files; return the digest of its manifest."""
        with self.layout() as blobs:
            descriptor = manifest(blobs, layers, environment, architecture)
            self.push_layout(descriptor, repository, tag)
        return descriptor["digest"]

    def push_index(self, images, repository, tag):
        """Push images, lists of tar files by their architectures, with an index; return the digest of the index."""
        with self.layout() as blobs:
            manifests = [
                {**manifest(blobs, layers, (), architecture), "platform": {"architecture": architecture, "os": "linux"}}
                for architecture, layers in images.items()
            ]
            text = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
            descriptor = store(blobs, INDEX, lambda path: path.write_text(text))
            self.push_layout(descriptor, repository, tag)
        return descriptor["digest"]

    @contextlib.contextmanager
    def layout(self):
        """Make an OCI layout for the time of a push; yield its directory of blobs."""
        directory = self.directory / "layout"
        shutil.rmtree(directory, ignore_errors=True)
        blobs = directory / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        yield blobs
        shutil.rmtree(directory)

    def push_layout(self, descriptor, repository, tag):
        """Push one manifest or index of the layout, with all that belongs to it."""
        directory = self.directory / "layout"
        (directory / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [descriptor]}))
        (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        run(
            [
                "skopeo",
                "copy",
                "--quiet",
                "--all",
                "--preserve-digests",
                "--dest-tls-verify=false",
                f"oci:{directory}",
                f"docker://{self.address}/{repository}:{tag}",
            ]
        )

    def push_sif(self, sif, repository, tag, *, without=()):
        """Push the files of a SIF that ranks need, except some paths, as one layer; return the manifest's digest."""
        apptainer = Layout.from_environment(os.environ).bin / "apptainer"
        show = [apptainer, "exec", "--cleanenv", "--contain", sif, "printenv", "PATH"]
        path = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        layer = self.directory / "layer.tar"
        write_files(apptainer, sif, layer, without=(*OF_APPTAINER, *without))
        return self.push_layers([layer], repository, tag, environment=[f"PATH={path}"])


class CuttingProxy:
    """An HTTP proxy of a registry that records downloads and can close the connection in the middle of a blob.

    Clients may address it instead of the registry, or use it as HTTP proxy for any other host.

    Attributes
    ----------
    address : str
        ``127.0.0.1:<port>``, to use instead of the registry's.
    completed : list of str
        Digests of the blobs that were sent completely, in this order.
    complete_blobs : int or None
        How many more blobs to send completely; of later blobs it sends half. None: no limit.
    cut_when : callable
        Condition to wait for before closing the connection after half a blob.
    """

    def __init__(self, registry, *, complete_blobs=None, cut_when=lambda: True):
        self._lock = threading.Lock()
        self.completed = []
        self.complete_blobs = complete_blobs
        self.cut_when = cut_when
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Forwards GET and HEAD."""

            protocol_version = "HTTP/1.1"

            def setup(self):
                # a small buffer, so that data which the client does not read is not sent
                self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                super().setup()

            def do_GET(self):
                upstream = http.client.HTTPConnection(registry.address)
                path = "/" + self.path.split("/", 3)[3] if self.path.startswith("http://") else self.path
                upstream.request(self.command, path, headers=dict(self.headers))
                answer = upstream.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name not in ("Date", "Server"):
                        self.send_header(name, value)
                self.end_headers()
                if self.command == "HEAD":
                    return
                body = answer.read()
                blob = "/blobs/" in self.path
                cut = blob and not proxy.take_one()
                try:
                    self.wfile.write(body[: len(body) // 2] if cut else body)
                except OSError:  # the client has the blob already, or gives up after another one failed
                    self.close_connection = True
                    return
                if cut:
                    while not proxy.cut_when():
                        time.sleep(0.05)
                    self.close_connection = True
                elif blob:
                    proxy.completed.append(self.path.rsplit("/", 1)[1])

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take_one(self):
        """Count one blob; return whether to send it completely."""
        with self._lock:
            if self.complete_blobs is not None:
                self.complete_blobs -= 1
            return self.complete_blobs is None or self.complete_blobs >= 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def manifest(blobs, layers, environment, architecture):
    """Store an image with these tar files as layers, moving the files; return the descriptor of its manifest."""
    descriptors = [store(blobs, LAYER, layer.replace) for layer in layers]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Env": list(environment), "Cmd": ["/bin/bash"]},
        "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
    }
    content = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": store(blobs, CONFIG, lambda path: path.write_text(json.dumps(config))),
        "layers": descriptors,
    }
    return store(blobs, MANIFEST, lambda path: path.write_text(json.dumps(content)))


def store(blobs, media_type, write):
    """Create a file with `write`, rename it to its digest, and return its descriptor."""
    new = blobs / "new"
    write(new)
    with new.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = new.stat().st_size
    new.rename(blobs / digest)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}

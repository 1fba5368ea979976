"""An OCI registry on the loopback interface: what clients read of one (opencontainers/distribution-spec, "Pull")."""

import base64
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time

from testbed.layout import Layout
from testbed.stand_ins.small_image import write_files

#: The environment of a client: the registry has plain HTTP.
ENVIRONMENT = {"APPTAINER_NOHTTPS": "1", "SINGULARITY_NOHTTPS": "1"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
#: Files that Apptainer adds to an image.
OF_APPTAINER = ("./.singularity.d", "./singularity", "./.run", "./.exec", "./.shell", "./.test", "./environment")


class Registry:
    """A running registry; ``with Registry(directory) as registry:`` stops it.

    It has the images of its directory in every repository, by their digests alone, also for clients that use it as HTTP
    proxy for any other host. It can close connections in the middle of blobs.

    Attributes
    ----------
    address : str
        ``127.0.0.1:<port>``, for ``docker://<address>/...``.
    login : str or None
        ``user:password`` that clients must send.
    requested, completed : list of str
        Digests that were requested, and those of blobs that were sent completely, in this order.
    complete_blobs : int or None
        How many more blobs to send completely; of later blobs it sends half. None: no limit.
    cut_when : callable
        Condition to wait for before closing the connection after half a blob.
    """

    def __init__(self, directory, *, login=None, complete_blobs=None, cut_when=lambda: True):
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.login, self.complete_blobs, self.cut_when = directory, login, complete_blobs, cut_when
        self.requested = []
        self.completed = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.registry = self
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self):
        """Stop the registry and keep its blobs."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def add_layers(self, layers, *, environment=()):
        """Add an image with tar files as its layers, moving the files; return the digest of its manifest."""
        descriptors = [self._add(LAYER, layer) for layer in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": list(environment), "Cmd": ["/bin/bash"]},
            "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
        }
        parts = {"config": self._add_json(CONFIG, config), "layers": descriptors}
        return self._add_json(MANIFEST, {"schemaVersion": 2, "mediaType": MANIFEST, **parts})["digest"]

    def add_sif(self, sif, *, without=()):
        """Add the files of a SIF that ranks need, except some paths, as one layer; return the manifest's digest."""
        apptainer = Layout.from_environment(os.environ).bin / "apptainer"
        show = [apptainer, "exec", "--cleanenv", "--contain", sif, "printenv", "PATH"]
        path = subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        layer = self.directory / "layer.tar"
        write_files(apptainer, sif, layer, without=(*OF_APPTAINER, *without))
        return self.add_layers([layer], environment=[f"PATH={path}"])

    def _add_json(self, media_type, content):
        new = self.directory / "new"
        new.write_text(json.dumps(content))
        return self._add(media_type, new)

    def _add(self, media_type, file):
        """Rename a file to its digest, and return its descriptor."""
        with file.open("rb") as content:
            digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
        file.rename(self.directory / digest)
        return {"mediaType": media_type, "digest": digest, "size": (self.directory / digest).stat().st_size}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()

    def setup(self):
        # a small buffer, so that data which the client does not read is not sent
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        super().setup()

    def do_GET(self):
        registry, (_, kind, name) = self.server.registry, f"/{self.path}".rsplit("/", 2)
        file = registry.directory / name
        login = registry.login and f"Basic {base64.b64encode(registry.login.encode()).decode()}"
        if login and self.headers["Authorization"] != login:
            self.answer(b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}', status=401)
        elif not name:  # /v2/
            self.answer(b"{}")
        elif not file.is_file():
            self.answer(b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', status=404)
        elif kind == "manifests":
            registry.requested.append(name)
            self.answer(file.read_bytes(), media_type=json.loads(file.read_text())["mediaType"])
        else:
            registry.requested.append(name)
            self.answer_blob(registry, file)

    do_HEAD = do_GET

    def answer(self, content, *, media_type="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", len(content))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="testbed"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def answer_blob(self, registry, file):
        with self.lock:
            complete = registry.complete_blobs is None or registry.complete_blobs > 0
            if registry.complete_blobs:
                registry.complete_blobs -= 1
        size = file.stat().st_size
        self.send_response(200)
        self.send_header("Content-Length", size)
        self.end_headers()
        try:
            with file.open("rb") as content:
                if complete:
                    shutil.copyfileobj(content, self.wfile)
                    registry.completed.append(file.name)
                    return
                self.wfile.write(content.read(size // 2))
            while not registry.cut_when():
                time.sleep(0.05)
        except OSError:  # the client has the blob already, or gives up after another one failed
            pass
        self.close_connection = True

    def log_message(self, *_):
        pass

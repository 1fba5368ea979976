"""A real OCI registry on loopback for the tests of images: the distribution's, filled by skopeo and Apptainer."""

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

#: What a client of this registry needs: it speaks plain HTTP.
ENVIRONMENT = {"APPTAINER_NOHTTPS": "1", "SINGULARITY_NOHTTPS": "1"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
#: What the runtime adds to an image that it runs, or shows of the host in it.
NOT_IN_LAYERS = ("./proc/*", "./sys/*", "./dev/*", "./tmp/*", "./var/tmp/*", "./root/*", "./home/*", "./.singularity.d",
                 "./singularity", "./.run", "./.exec", "./.shell", "./.test", "./environment")  # fmt: skip


class Registry:
    """One running ``docker-registry``; ``with Registry.start(directory) as registry:`` ends it.

    Attributes
    ----------
    address : str
        ``127.0.0.1:<port>``, what follows ``docker://``.
    log : Path
        What the registry says, one line for each request.
    """

    def __init__(self, directory, process, port):
        self.directory = directory
        self.process = process
        self.address = f"127.0.0.1:{port}"
        self.log = directory / "registry.log"

    @classmethod
    def start(cls, directory, *, htpasswd=None):
        """Start a registry that keeps its blobs in `directory`; an earlier one's are served again.

        `htpasswd` is the path of a password file, in bcrypt, where users have to log in.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        configuration = {
            "version": 0.1,
            "log": {"accesslog": {"disabled": False}},
            "storage": {"filesystem": {"rootdirectory": str(directory / "registry")}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        if htpasswd:
            configuration["auth"] = {"htpasswd": {"realm": "testbed", "path": str(htpasswd)}}
        file = directory / "registry.json"  # JSON is YAML
        file.write_text(json.dumps(configuration))
        with (directory / "registry.log").open("a") as log:
            process = subprocess.Popen(
                [find_command("docker-registry"), "serve", file], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        registry = cls(directory, process, port)
        for _ in range(200):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    return registry
            time.sleep(0.05)
        registry.stop()
        raise RuntimeError(f"docker-registry did not start: {registry.log.read_text()}")

    def stop(self):
        """End the registry; its blobs stay."""
        self.process.terminate()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def push_layers(self, layers, repository, tag, *, environment=()):
        """Push tar files, which are moved, as the layers of an image; return the digest of its manifest."""
        layout = self.directory / "layout"
        shutil.rmtree(layout, ignore_errors=True)
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        descriptors = [store(blobs, LAYER, layer.replace) for layer in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": list(environment), "Cmd": ["/bin/bash"]},
            "rootfs": {"type": "layers", "diff_ids": [descriptor["digest"] for descriptor in descriptors]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": store(blobs, CONFIG, lambda path: path.write_text(json.dumps(config))),
            "layers": descriptors,
        }
        descriptor = store(blobs, MANIFEST, lambda path: path.write_text(json.dumps(manifest)))
        index = {"schemaVersion": 2, "manifests": [descriptor]}
        (layout / "index.json").write_text(json.dumps(index))
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        run(["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false",
             f"oci:{layout}", f"docker://{self.address}/{repository}:{tag}"])  # fmt: skip
        shutil.rmtree(layout)
        return descriptor["digest"]

    def push_sif(self, sif, repository, tag, *, without=()):
        """Push what is in a SIF, but for some paths, as an image of one layer; return the digest of its manifest."""
        enter = ["apptainer", "exec", "--cleanenv", "--contain", sif]
        path = run([*enter, "printenv", "PATH"]).strip()
        excluded = [f"--exclude={name}" for name in (*NOT_IN_LAYERS, *without)]
        layer = self.directory / "layer.tar"
        with layer.open("wb") as file:
            run([*enter, "tar", "--create", "--directory=/", *excluded, "."], stdout=file)
        return self.push_layers([layer], repository, tag, environment=[f"PATH={path}"])

    def push_oras(self, sif, repository, tag):
        """Push a SIF as it is; return the digest of its manifest."""
        run(["apptainer", "push", sif, f"oras://{self.address}/{repository}:{tag}"], env=ENVIRONMENT)
        return self.digest(repository, tag)

    def digest(self, repository, tag):
        """The digest of a manifest, as skopeo says it."""
        raw = run(["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{self.address}/{repository}:{tag}"])
        return "sha256:" + hashlib.sha256(raw.encode()).hexdigest()


class CuttingProxy:
    """An HTTP server before a registry, which notes what is fetched and can drop the line within a blob.

    It can be used in place of the registry, and as the HTTP proxy of a client that names any other host.

    Attributes
    ----------
    address : str
        ``127.0.0.1:<port>``, in place of the registry's.
    completed : list of str
        Digests of the blobs that were sent to their last byte, in that order.
    whole : int or None
        How many more blobs it sends whole; of the others it sends a half. None: no limit.
    cut_when : callable
        What has to be true before the line is dropped in a half.
    """

    def __init__(self, registry, *, whole=None, cut_when=lambda: True):
        self._lock = threading.Lock()
        self.completed = []
        self.whole = whole
        self.cut_when = cut_when
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """Passes GET and HEAD on."""

            protocol_version = "HTTP/1.1"

            def setup(self):
                # what the client does not read is not sent
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
                except OSError:  # the client has the blob already, or gives up on all when one fails
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
        """Whether one more blob is sent whole."""
        with self._lock:
            if self.whole is not None:
                self.whole -= 1
            return self.whole is None or self.whole >= 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def store(blobs, media_type, write):
    """Let `write` make a file, move it to its digest, and return its descriptor."""
    new = blobs / "new"
    write(new)
    with new.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = new.stat().st_size
    new.rename(blobs / digest)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}


def run(command, *, env=None, stdout=subprocess.PIPE):
    """Run a command that must succeed, with the testbed's runtime on PATH; return its standard output."""
    path = os.pathsep.join([str(Layout.from_environment(os.environ).bin), os.environ["PATH"]])
    result = subprocess.run(
        [str(word) for word in command], env={**os.environ, "PATH": path, **(env or {})},
        stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {os.fsdecode(result.stderr)}")
    return os.fsdecode(result.stdout or b"")

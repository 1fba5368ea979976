"""A Python that has imported torch, and forks a process for each script: the import takes most of a short test's time.

A forked process runs its script as `python` does, and ends as `python` does, with all that happens at exit.
"""

import contextlib
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path


class Zygote:
    """The Python that forks, as its clients see it."""

    def __init__(self, environment):
        self.environment = environment
        self.directory = tempfile.TemporaryDirectory()
        self.errors = Path(self.directory.name) / "errors"
        self.start_server()

    def start_server(self):
        """Start the Python that forks."""
        self.address = str(Path(self.directory.name) / f"socket-{os.urandom(4).hex()}")
        with self.errors.open("w") as errors:
            self.server = subprocess.Popen(
                [sys.executable, __file__, self.address], env=self.environment, stdout=subprocess.PIPE, stderr=errors,
                text=True,
            )  # fmt: skip
        assert self.server.stdout.readline() == "ready\n", self.errors.read_text()

    def start(self, command, environment, cwd=None):
        if self.server.poll() is not None:
            # another test has killed it; the warning is in the summary of pytest
            ended = f"the Python that forks ended with status {self.server.returncode}, and is started again"
            warnings.warn(f"{ended}. {self.errors.read_text()[-2000:]}", stacklevel=2)
            self.server.communicate()
            self.start_server()
        return Forked(self.address, list(map(str, command)), environment, str(cwd or Path.cwd()))

    def close(self):
        self.server.kill()
        self.server.communicate()
        self.directory.cleanup()


class Forked:
    """A forked process; the part of subprocess.Popen that tests use."""

    def __init__(self, address, command, environment, cwd):
        self.outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (closed by communicate)
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(address)
        job = json.dumps([command, environment, cwd]).encode()
        descriptors = [file.fileno() for file in self.outputs]
        socket.send_fds(self.connection, [len(job).to_bytes(8, "big")], descriptors)
        self.connection.sendall(job)
        self.answers = self.connection.makefile("r")
        self.pid = int(self.answers.readline())
        self.returncode = None

    def communicate(self, timeout):
        self.connection.settimeout(timeout)
        self.returncode = int(self.answers.readline())
        for file in self.outputs:
            file.seek(0)
        texts = tuple(file.read() for file in self.outputs)
        for file in (*self.outputs, self.answers, self.connection):
            file.close()
        return texts

    def kill(self):
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def serve(address):
    """Fork a process for each client; return its command and environment in it, never in this process."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not listener:  # a process has ended
                pid, client = key.data
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):  # the client may be gone
                    client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
                client.close()
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                continue
            client, _ = listener.accept()
            size, descriptors, _, _ = socket.recv_fds(client, 8, 2)
            job = b""
            while len(job) < int.from_bytes(size, "big"):
                part = client.recv(2**16)
                if not part:
                    break
                job += part
            if not job or len(job) < int.from_bytes(size, "big"):  # the client is gone
                client.close()
                continue
            pid = os.fork()
            if not pid:
                for stream, descriptor in zip((1, 2), descriptors):
                    os.dup2(descriptor, stream)
                    os.close(descriptor)
                for each in list(selector.get_map().values()):
                    if each.fileobj is not listener:
                        os.close(each.fileobj)
                        each.data[1].close()
                client.close()
                listener.close()
                selector.close()
                return json.loads(job)
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):  # the client may be gone
                client.sendall(f"{pid}\n".encode())
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))


def run(command, environment, cwd):
    """Run `-c CODE` or a script with its arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for directory in reversed(environment.get("PYTHONPATH", "").split(":")):
        if directory:
            sys.path.insert(0, directory)
    if command[0] == "-c":
        sys.argv, sys.path[0:0] = command[:1], [""]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    else:
        sys.argv = command
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 (the first optimizer imports it)
    import torch.distributed.checkpoint.state_dict  # noqa: F401 (with what sharded trainings import)
    import torch.distributed.fsdp  # noqa: F401
    import torch.distributed.nn.functional  # noqa: F401
    import torch.distributed.tensor  # noqa: F401
    import torch.nn.parallel  # noqa: F401

    with contextlib.suppress(ImportError):
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401 (the curves)

    gc.freeze()  # a forked process need not look at what it shares, and copy it
    del sys.path[0]  # the directory of the tests
    job = serve(sys.argv[1])
    try:
        run(*job)
    except Exception:  # as Python itself prints it
        traceback.print_exc()
        sys.exit(1)

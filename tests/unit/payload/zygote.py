"""A Python that has imported torch, and forks a process for each script: the import takes most of a short test's time.

A forked process runs its script as `python` does, and ends as `python` does, with all that happens at exit.
"""

import contextlib
import fcntl
import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

#: In place of the length of a job: the client has none, and ends by closing the connection.
HOLD = bytes(8)


class Zygote:
    """The Python that forks, as its clients see it: one for all processes of pytest, which share `directory`."""

    def __init__(self, directory, environment):
        self.directory = directory
        self.environment = environment
        self.errors = directory / "errors"
        self.connect()

    def connect(self):
        """Connect to the Python that forks, or start it; it ends with the last of these connections."""
        self.connection = socket.socket(socket.AF_UNIX)
        noted = self.directory / "address"
        with (self.directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self.address = noted.read_text()
                self.connection.connect(self.address)
            except OSError:
                self.address = self.start_server()
                self.connection.connect(self.address)
                noted.write_text(self.address)
            self.connection.sendall(HOLD)

    def start_server(self):
        """Start the Python that forks; return its address."""
        with self.errors.open("w") as errors:
            server = subprocess.Popen(
                [sys.executable, __file__], env=self.environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        with server.stdout:
            address = server.stdout.readline().strip()
        assert address, self.errors.read_text()
        return address

    def start(self, command, environment, cwd=None):
        job = list(map(str, command)), environment, str(cwd or Path.cwd())
        try:
            return Forked(self.address, *job)
        except OSError:
            # another test has killed it; the warning is in the summary of pytest
            text = self.errors.read_text()[-2000:]
            warnings.warn(f"the Python that forks ended, and is started again. {text}", stacklevel=2)
            self.connection.close()
            self.connect()
            return Forked(self.address, *job)

    def close(self):
        self.connection.close()


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


def serve():
    """Fork a process for each job; return the job in it, and in this process None, when no client holds it."""
    directory = Path(tempfile.mkdtemp())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "socket"))
    listener.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print(directory / "socket", flush=True)
    holders = None
    while holders != 0:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                job, outputs = receive(client)
                if job:
                    pid = os.fork()
                    if not pid:
                        become(selector, client, outputs)
                        return json.loads(job)
                    with contextlib.suppress(OSError):  # the client may be gone
                        client.sendall(f"{pid}\n".encode())
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, client))
                elif job is None:
                    holders = (holders or 0) + 1
                    selector.register(client, selectors.EVENT_READ)
                else:
                    client.close()
                for output in outputs:
                    os.close(output)
                continue
            selector.unregister(key.fileobj)
            if key.data:
                report_end(*key.data)
                os.close(key.fileobj)
            else:
                holders -= 1
                key.fileobj.close()
    shutil.rmtree(directory)
    return None


def receive(client):
    """Return a client's job and its files for output: no bytes from a client that is gone, None from one that holds."""
    size, outputs, _, _ = socket.recv_fds(client, len(HOLD), 2)
    if size == HOLD:
        return None, outputs
    job = b""
    while len(job) < int.from_bytes(size, "big"):
        part = client.recv(2**16)
        if not part:
            return b"", outputs
        job += part
    return job, outputs


def become(selector, client, outputs):
    """In a forked process: write to the client's files, and close what belongs to other clients."""
    for stream, output in zip((1, 2), outputs):
        os.dup2(output, stream)
        os.close(output)
    for key in list(selector.get_map().values()):
        if key.data:
            os.close(key.fileobj)
            key.data[1].close()
        else:
            key.fileobj.close()
    client.close()
    selector.close()


def report_end(pid, client):
    """Report the exit status of a process that has ended to its client."""
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the client may be gone
        client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    client.close()


def run(command, environment, cwd):
    """Run `-c CODE` or a script with its arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for directory in reversed(environment.get("PYTHONPATH", "").split(":")):
        if directory:
            sys.path.insert(0, directory)
    if command[0] == "-c":
        sys.argv, sys.path[0:0] = ["-c", *command[2:]], [""]
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
    job = serve()
    if job is None:
        sys.exit()
    try:
        run(*job)
    except Exception:  # as Python itself prints it
        traceback.print_exc()
        sys.exit(1)

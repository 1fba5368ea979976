"""A Python that has imported torch, and forks a process for each script: the import takes most of a short test's time.

A forked process runs its script as `python` does, and ends with what happens at exit. It frees its objects only where
the variable FREE_AT_END is set: these are torch's, and to free them copies the memory that is shared.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path


class Zygote:
    """The Python that forks, as pytest sees it; it ends when pytest closes the connection."""

    def __init__(self, environment):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno())]
        self.server = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def start(self, command, environment, cwd=None):
        return Forked(self.connection, [list(map(str, command)), environment, str(cwd or Path.cwd())])

    def close(self):
        self.connection.close()
        self.server.wait()


class Forked:
    """A forked process; the part of subprocess.Popen that tests use."""

    def __init__(self, connection, job):
        self.outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (closed by communicate)
        answers, theirs = os.pipe()
        with tempfile.TemporaryFile("w+") as file:
            json.dump(job, file)
            file.flush()
            descriptors = [file.fileno(), *(output.fileno() for output in self.outputs), theirs]
            socket.send_fds(connection, [b"job"], descriptors)
        os.close(theirs)
        self.answers = os.fdopen(answers, "rb", buffering=0)
        self.pid = int(self.answers.readline())
        self.returncode = None

    def communicate(self, timeout):
        if not select.select([self.answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        self.returncode = int(self.answers.readline())
        for file in self.outputs:
            file.seek(0)
        texts = tuple(file.read() for file in self.outputs)
        for file in (*self.outputs, self.answers):
            file.close()
        return texts

    def kill(self):
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def serve(connection):
    """Fork a process for each job; return the job in it, and in this process None, when pytest has ended."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not connection:
                selector.unregister(key.fileobj)
                report_end(key.fileobj, *key.data)
                continue
            message, descriptors, _, _ = socket.recv_fds(connection, 16, 4)
            if not message:
                return None
            job, *outputs, answers = descriptors
            pid = os.fork()
            if not pid:
                return become(selector, job, outputs, answers)
            os.write(answers, b"%d\n" % pid)
            for descriptor in (job, *outputs):
                os.close(descriptor)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answers))


def become(selector, job, outputs, answers):
    """In a forked process: return its job, write to its files, and close what belongs to others."""
    for stream, output in zip((1, 2), outputs):
        os.dup2(output, stream)
        os.close(output)
    for key in selector.get_map().values():
        if key.data:
            os.close(key.fd)
            os.close(key.data[1])
        else:
            key.fileobj.close()
    selector.close()
    os.close(answers)
    with os.fdopen(job) as file:
        file.seek(0)
        return json.load(file)


def report_end(descriptor, pid, answers):
    """Report the exit status of a process that has ended."""
    os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(OSError):  # the test may have ended
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(status))
    os.close(answers)


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


def end(code):
    """End with the status of `sys.exit(code)`, after threads and what is registered for the exit."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 (the first optimizer imports it)
    import torch.distributed.checkpoint.state_dict  # noqa: F401 (with what sharded trainings import)
    import torch.distributed.fsdp  # noqa: F401
    import torch.distributed.nn.functional  # noqa: F401
    import torch.distributed.tensor  # noqa: F401
    import torch.nn.parallel  # noqa: F401

    sys.modules["matplotlib"] = None  # the curves take longer than a short training; test_metrics.py draws them
    gc.freeze()  # a forked process need not look at what it shares, and copy it
    del sys.path[0]  # the directory of the tests
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    if job is None:
        sys.exit()
    code = None
    try:
        run(*job)
    except SystemExit as ended:
        code = ended.code
    except Exception:  # as Python itself prints it
        traceback.print_exc()
        code = 1
    (sys.exit if "FREE_AT_END" in os.environ else end)(code)

"""Processes that fork from a Python which has imported torch: the import takes most of a short test's time.

The Python is multiprocessing's fork server. A forked process runs its script as `python` does, and ends with what
happens at exit. It frees its objects only where the variable FREE_AT_END is set: these are torch's, and to free them
copies the memory that is shared.
"""

import atexit
import ctypes
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from unittest.mock import patch

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(
    [
        "torch._dynamo",  # the first optimizer imports it
        "torch.distributed.checkpoint.state_dict",  # with what sharded trainings import
        "torch.distributed.fsdp",
        "torch.distributed.nn.functional",
        "torch.distributed.tensor",
        "torch.nn.parallel",
    ]
)


class Forked(FORKING.Process):
    """A forked process; the part of subprocess.Popen that tests use."""

    def __init__(self, command, environment, cwd=None):
        outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 (closed by communicate)
        paths = [f"/proc/{os.getpid()}/fd/{output.fileno()}" for output in outputs]
        super().__init__(target=run, args=(list(map(str, command)), environment, cwd or Path.cwd(), paths), daemon=True)
        with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # the first one starts the server
            self.start()
        self.outputs = outputs

    @property
    def returncode(self):
        return self.exitcode

    def communicate(self, timeout):
        self.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        for file in self.outputs:
            file.seek(0)
        texts = tuple(file.read() for file in self.outputs)
        for file in self.outputs:
            file.close()
        return texts


def run(command, environment, cwd, outputs):
    """Run `-c CODE` or a script with its arguments, and end with its status."""
    gc.freeze()  # a forked process need not look at what it shares, and copy it
    for stream, output in zip((1, 2), outputs):
        os.dup2(os.open(output, os.O_WRONLY), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    # without the directories of the tests
    own = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [*filter(None, environment.get("PYTHONPATH", "").split(":")), *own]
    code = None
    try:
        if command[0] == "-c":
            sys.argv = ["-c", *command[2:]]
            sys.path.insert(0, "")
            exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
        else:
            sys.argv = command
            sys.path.insert(0, str(Path(command[0]).parent))
            runpy.run_path(command[0], run_name="__main__")
    except SystemExit as ended:
        code = ended.code
    except Exception:  # as Python itself prints it
        traceback.print_exc()
        code = 1
    end(code)


def end(code):
    """End with the status of `sys.exit(code)`, after threads and what is registered for the exit."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    if "FREE_AT_END" in os.environ:
        ctypes.pythonapi.Py_Exit(code or 0)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code or 0)

"""Kernels for Jupyter: the notebook of the ladder runs in one, and Jupyter starts and ends them."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from testbed.recipes import VERSION

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: The environment of Jupyter, which may lack the PATH of a login shell.
CLEAN = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}

#: Runs a notebook like Jupyter, and prints the output of its cells.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
kernel, path = sys.argv[1:]
notebook = nbformat.read(path, 4)
NotebookClient(notebook, kernel_name=kernel, timeout=900).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        assert output.output_type == "stream", output
        print(output.text, end="")
"""

#: Starts a kernel, interrupts a cell, shuts the kernel down, starts it again and kills it; prints the results.
CONTROL = """
import atexit, json, subprocess, sys, time
from jupyter_client.manager import start_new_kernel

def runs():
    return subprocess.run(["pgrep", "-f", name], stdout=subprocess.DEVNULL).returncode == 0

def gone():
    deadline = time.monotonic() + 300
    while runs() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not runs()

def start():
    manager, client = start_new_kernel(kernel_name=sys.argv[1], startup_timeout=600)
    atexit.register(manager.shutdown_kernel, now=True)  # after a failure too: a kernel holds the output open
    return manager, client

# Short sleeps: a signal that arrives just before a sleep does not end it.
CELL = "import time; print('asleep', flush=True)\\nwhile True: time.sleep(0.1)"

manager, client = start()
name = manager.connection_file
began = runs()
asked = client.execute(CELL)
while client.get_iopub_msg(timeout=300)["msg_type"] != "stream":
    pass
manager.interrupt_kernel()
reply = client.get_shell_msg(timeout=300)
while reply["parent_header"]["msg_id"] != asked:  # an earlier reply
    reply = client.get_shell_msg(timeout=300)
interrupted = reply["content"]["ename"]
after = "aborted"  # the reply of an interrupted kernel to an early request
while after == "aborted":
    time.sleep(0.1)
    after = client.execute_interactive("1 + 1", timeout=300, output_hook=lambda _: None)["content"]["status"]
manager.shutdown_kernel()
shut_down = gone()
manager, client = start()
name = manager.connection_file
manager.shutdown_kernel(now=True)
print(json.dumps([began, interrupted, after, shut_down, gone()]))
"""


class Jupyter:
    """A kernel that `install-kernel` created for a module, and a Jupyter without a loaded module."""

    def __init__(self, testbed, module, directory):
        # the image may not reach the package index
        wheels = directory / "wheels"
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", wheels, "ipykernel==7.4.0"]
        subprocess.run(download, check=True, capture_output=True, timeout=1800)
        self.work = directory / "work"
        self.home = self.work / "home"
        self.home.mkdir(parents=True)
        # unlike the working directory, the image does not have it by itself
        runtime = directory / "runtime"
        self.environ = {**CLEAN, "HOME": str(self.home), "JUPYTER_RUNTIME_DIR": str(runtime)}
        self.load = f"export HOME={self.home} SINGULARITY_BIND={wheels}\nmodule load {module}\n"
        pip = f"PIP_NO_INDEX=1 PIP_FIND_LINKS={wheels} pip"
        # --no-compile: Python compiles what the kernel imports
        options = "--user --quiet --no-compile --no-warn-script-location"
        testbed.run(f"{self.load}{pip} install {options} ipykernel\ninstall-kernel", cwd=self.work)
        (self.kernel,) = os.listdir(self.home / ".local/share/jupyter/kernels")
        assert self.kernel == module.lower().replace("/", "-")

    def run(self, script, *arguments):
        """Run a Python script that uses the kernel; return its standard output."""
        result = subprocess.run(
            [sys.executable, "-c", script, self.kernel, *arguments],
            env=self.environ,
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
        return result.stdout


@pytest.fixture(scope="module", params=["container", pytest.param("venv", marks=pytest.mark.thorough)])
def jupyter(testbed, request):
    """The Jupyter of each module."""
    with tempfile.TemporaryDirectory(prefix="jupyter-", dir=testbed.layout.root) as directory:
        yield Jupyter(testbed, request.getfixturevalue(request.param), Path(directory))


def test_the_notebook_runs_in_the_kernel_that_one_command_makes(testbed, jupyter):
    notebook = jupyter.work / "mnist.ipynb"
    testbed.run(f"{jupyter.load}sed s/epochs=3/epochs=1/ $PAYLOAD/ladder/mnist.ipynb >{notebook}")
    output = jupyter.run(EXECUTE, str(notebook))
    assert output.startswith(f"device cpu, torch {VERSION}") and "generated digits" in output
    (accuracy,) = re.findall(r"^epoch 1/1  loss \S+  test accuracy (\S+) %  images/s \d+$", output, re.MULTILINE)
    assert float(accuracy) > 60


def test_jupyter_can_interrupt_shut_down_and_kill_the_kernel(jupyter):
    assert json.loads(jupyter.run(CONTROL)) == [True, "KeyboardInterrupt", "ok", True, True]


#: Modules of two versions: their Python is that of the tests, and the kernel prints which one is loaded.
MODULEFILE = """#%Module
conflict PyTorch
setenv EBROOTPYTORCH {root}/{version}
prepend-path PATH {root}/bin
setenv PYTHONPATH {root}/packages
"""


@pytest.mark.parametrize("name", ["Lmod", "Environment Modules"])
def test_kernels_start_under_both_module_systems_whatever_jupyter_has_loaded(testbed, module_system, name, tmp_path):
    system = module_system(name)
    for directory in ("modules/PyTorch", "bin", "packages/ipykernel", "system/init"):
        (tmp_path / directory).mkdir(parents=True)
    for version in ("1.0", "2.0"):
        (tmp_path / "modules/PyTorch" / version).write_text(MODULEFILE.format(root=tmp_path, version=version))
    (tmp_path / "packages/ipykernel/kernelapp.py").touch()
    (tmp_path / "packages/ipykernel_launcher.py").write_text("import os; print(os.environ['EBROOTPYTORCH'])")
    (tmp_path / "bin/conda-python-simple").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin/conda-python-simple").chmod(0o755)
    (tmp_path / "system/init/bash").write_text(system.code)
    home = f"export JUPYTER_DATA_DIR={tmp_path}\n"
    if name != "Lmod":  # the init file of the unpacked package points to where it would be installed
        home += f"export MODULESHOME={tmp_path}/system\n"
    install = f"{home}module load PyTorch/1.0\n{testbed.layout.repository}/bin/install-kernel"
    assert "created kernel pytorch-1.0 in" in system.run(install, tmp_path / "modules")
    argv = json.loads((tmp_path / "kernels/pytorch-1.0/kernel.json").read_text())["argv"]
    clean = subprocess.run(argv, env=CLEAN, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert clean.stdout == f"{tmp_path}/1.0\n", clean.stderr
    beside_another = system.run(f"module load PyTorch/2.0\n{shlex.join(argv)}", tmp_path / "modules")
    assert beside_another == clean.stdout

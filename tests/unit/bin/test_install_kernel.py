"""A Jupyter kernel of the loaded module: what is written, and what Jupyter starts with it."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from repository import TREE

NAME = "pytorch-1.0-cpu"

#: A module system: a module is a file that is sourced.
INIT = """module() {
  [ "$1" != purge ] || { unset LOADEDMODULES; echo "purged" >&2; return 0; }
  shift
  for name; do
    [ -e "$MODULEPATH/$name" ] || { echo "no module $name in $MODULEPATH" >&2; return 1; }
    source "$MODULEPATH/$name"
    LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$name
  done
}
"""

#: In place of the kernel: prints what it is started with.
LAUNCHER = """import json, os, sys
print(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], "environment": dict(os.environ)}))
"""


class Machine:
    """A machine with one module, PyTorch/1.0-cpu, whose Python is that of the tests with a stand-in of ipykernel."""

    def __init__(self, directory):
        self.home = directory / "home"
        self.init = directory / "module's home" / "init" / "bash"
        self.modules = directory / "modules"
        self.root = directory / "soft ware" / "PyTorch" / "1.0-cpu"
        self.ipykernel = directory / "packages" / "ipykernel"
        for path in (self.home, self.init.parent, self.modules / "PyTorch", self.ipykernel):
            path.mkdir(parents=True)
        self.init.write_text(INIT)
        for part in ("bin", "libexec"):
            shutil.copytree(TREE / part, self.root / part)
        python = self.root / "bin" / "conda-python-simple"
        python.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        root = shlex.quote(str(self.root))
        (self.modules / "PyTorch" / "1.0-cpu").write_text(
            f"export EBROOTPYTORCH={root} PATH={root}/bin:$PATH PYTHONPATH={self.ipykernel.parent}"
            " SINGULARITY_BINDPATH=/module APPTAINER_BINDPATH=/module\n"
        )
        (self.modules / "MNIST").write_text("export MNIST_ROOT=/data/mnist\n")
        (self.ipykernel / "__init__.py").touch()
        (self.ipykernel / "kernelapp.py").touch()
        (self.ipykernel.parent / "ipykernel_launcher.py").write_text(LAUNCHER)
        self.kernels = self.home / ".local" / "share" / "jupyter" / "kernels"

    @property
    def kernel(self):
        """The file that Jupyter reads."""
        return self.kernels / NAME / "kernel.json"

    def run(self, *arguments, load="PyTorch/1.0-cpu", **variables):
        """Run install-kernel in a shell that has loaded modules."""
        system = {"MODULESHOME": str(self.init.parents[1]), "MODULEPATH": str(self.modules)}
        environ = {"HOME": str(self.home), "PATH": "/usr/bin:/bin", **system, **variables}
        script = f"""source {shlex.quote(str(self.init))}
module load {load}
export LOADEDMODULES
PATH={shlex.quote(f"{self.root}/bin")}:$PATH
{shlex.join(["install-kernel", *arguments])}"""
        options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
        return subprocess.run(["bash", "-c", script], env=environ, **options)

    def start(self, connection, **environ):
        """Start the kernel as Jupyter does; return the process and its output."""
        argv = json.loads(self.kernel.read_text())["argv"]
        command = [word.replace("{connection_file}", str(connection)) for word in argv]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(command, env={"PATH": "/usr/bin:/bin", **environ}, text=True, **pipes)
        return process, *process.communicate(timeout=300)

    def left(self):
        """All files below the home directory."""
        return [path for path in self.home.rglob("*") if path.is_file()]


@pytest.fixture
def machine(tmp_path):
    """A machine of this test."""
    return Machine(tmp_path)


def failed(result):
    """The one line of a command that failed."""
    assert result.returncode == 1 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_one_command_makes_a_kernel_with_the_modules_environment_and_the_users_binds(machine, tmp_path):
    result = machine.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert NAME in result.stdout and machine.left() == [machine.kernel]
    spec = json.loads(machine.kernel.read_text())
    expected = {"display_name": "PyTorch 1.0-cpu", "language": "python", "interrupt_mode": "message"}
    assert expected.items() <= spec.items()
    assert machine.kernel.stat().st_mode & 0o777 == 0o644
    connection = tmp_path / "run time" / "kernel-1.json"
    connection.parent.mkdir()
    connection.touch()
    process, output, errors = machine.start(connection, LOADEDMODULES="jupyter/5", APPTAINER_BIND="/mine")
    assert (process.returncode, errors) == (0, "purged\n")
    kernel = json.loads(output)
    environ = kernel["environment"]
    assert kernel["arguments"] == ["-f", str(connection)]
    assert environ["EBROOTPYTORCH"] == str(machine.root)
    assert "MNIST_ROOT" not in environ
    assert environ["APPTAINER_BIND"] == "/mine"
    assert environ["APPTAINER_BINDPATH"] == environ["SINGULARITY_BINDPATH"] == f"/module,{connection.parent}"
    # signals of Jupyter's are for Python itself
    assert kernel["pid"] == process.pid


def test_a_kernel_of_another_user_stays_and_so_does_ours_where_ipykernel_is_missing(machine):
    machine.kernel.parent.mkdir(parents=True)
    machine.kernel.write_text("{}")
    for arguments in ([], ["--remove"]):
        assert "not created by install-kernel. Choose another --name" in failed(machine.run(*arguments))
    assert machine.kernel.read_text() == "{}"
    machine.kernel.unlink()
    machine.run()
    before = machine.kernel.read_text()
    (machine.ipykernel / "kernelapp.py").unlink()
    for name in (NAME, "other"):
        line = failed(machine.run("--name", name))
        assert "PyTorch 1.0-cpu cannot import ipykernel" in line and "`pip install --user ipykernel`" in line
    assert machine.kernel.read_text() == before
    assert os.listdir(machine.kernels) == [NAME] and machine.left() == [machine.kernel]


def test_a_start_without_the_module_or_its_system_reports_it_in_jupyters_log(machine, tmp_path):
    machine.run()
    (machine.modules / "PyTorch" / "1.0-cpu").unlink()
    process, _, errors = machine.start(tmp_path, EBROOTPYTORCH="of another")
    fault = "start-kernel: cannot load PyTorch/1.0-cpu. Load an available module"
    assert process.returncode == 1 and errors.splitlines()[-1].startswith(fault)
    machine.init.unlink()
    process, _, errors = machine.start(tmp_path)
    assert (process.returncode, len(errors.splitlines())) == (1, 1)
    assert f"module system not found: {machine.init}." in errors


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ("", {"JUPYTER_DATA_DIR": "/proc/x"}, "cannot write to /proc/x/kernels/pytorch-1.0-cpu (No such file or"),
        ("", {"HOME": ""}, "HOME is not set. Export it, or JUPYTER_DATA_DIR"),
        ("--nmae x", {}, "unknown arguments '--nmae x': the options are --name NAME, --load MODULE, --remove and --h"),
        ("--load", {}, "--load needs a value"),
        ("--name ../x", {}, "invalid kernel name '../x'"),
        ("--remove", {}, "no such kernel: "),
        # messages of several paragraphs are one line
        ("--load OTHER", {}, "no module OTHER Check it. start-kernel: cannot load OTHER PyTorch/1.0-cpu. Load an avai"),
        ("", {"load": ""}, "no PyTorch module is loaded. Load one first"),
        ("", {"load": "MNIST", "EBROOTPYTORCH": "/x"}, "no module of /x in LOADEDMODULES='MNIST'"),
    ],
)
def test_an_error_is_one_line_and_makes_no_kernel(machine, arguments, variables, complaint):
    machine.init.write_text(INIT.replace("no module $name in $MODULEPATH", "no module\n    $name\n\n\nCheck it."))
    assert complaint in failed(machine.run(*arguments.split(), **variables))
    assert machine.left() == []

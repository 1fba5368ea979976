"""The file with the compiled modules of a packed venv: what comes from there, and that all else is as without."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "easyblocks" / "pytorch_install" / "programs" / "packed_modules.py"
SITE = f"lib/python3.{sys.version_info.minor}/site-packages"

#: Modules of the venv; those of `torch` are imported when it is packed, except `torch.later`.
FILES = {
    "torch/__init__.py": """
import importlib.util, sys
from torch import layers, data
import torch.native.kernels
spec = importlib.util.spec_from_file_location("torch.by_hand", __path__[0] + "/other.py")
sys.modules["torch.by_hand"] = importlib.util.module_from_spec(spec)
version = 'packed'
""",
    "torch/other.py": "",
    "torch/layers.py": "def fail():\n    raise ValueError('in a layer')\nversion = 'packed'\n",
    "torch/data/__init__.py": "version = 'packed'\n",
    "torch/native/kernels.py": "version = 'packed'\n",  # in a namespace package
    "torch/later.py": "version = 'packed'\n",
    "both.py": "version = 'packed'\n",
    "both/__init__.py": "version = 'package'\n",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A virtual environment with the files that only the packed one has, and afterwards other sources."""
    venv = tmp_path_factory.mktemp("packed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    write(venv / SITE, FILES)
    written = venv.parent / "written"
    written.mkdir()
    done = run(venv, "-I", PROGRAM, written, "torch", "both", "absent")
    assert done.stdout == f"{venv / SITE}\n"
    assert done.stderr == "absent is not imported: No module named 'absent'\n"
    shutil.copytree(written, venv / SITE, dirs_exist_ok=True)
    write(venv / SITE, {path: text.replace("packed", "unpacked") for path, text in FILES.items()})
    return venv


@pytest.fixture
def venv(made, monkeypatch):
    """The same, without the variables of this Python."""
    for name in ("PYTHONPATH", "PYTHONOPTIMIZE", "PYTHONHOME"):
        monkeypatch.delenv(name, raising=False)
    return made


def write(directory, files):
    """Write files, by their paths in a directory."""
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)


def run(venv, *arguments, **options):
    """What the environment's Python prints."""
    return subprocess.run([venv / "bin" / "python", *arguments], capture_output=True, text=True, check=True, **options)


def printed(venv, program, *options, **others):
    """The words that a program prints."""
    return run(venv, *options, "-c", program, **others).stdout.split()


VERSIONS = "import torch, torch.later as a, torch.native.kernels as n, both; "
VERSIONS += "print(torch.version, torch.layers.version, torch.data.version, n.version, a.version, both.version)"


def test_what_was_imported_comes_from_the_file_and_other_modules_from_theirs(venv):
    assert printed(venv, VERSIONS) == ["packed", "packed", "packed", "packed", "unpacked", "package"]


def test_no_source_and_no_bytecode_of_them_is_opened(venv):
    program = """
import sys
sys.addaudithook(lambda event, values: event == "open" and print(values[0]))
import torch
"""
    assert [path for path in printed(venv, program) if "torch" in path] == []


def test_with_other_bytecode_or_at_another_path_the_file_is_not_used(venv, tmp_path):
    assert printed(venv, VERSIONS, "-O")[:2] == ["unpacked", "unpacked"]
    shutil.copytree(venv, tmp_path / "moved", symlinks=True)
    assert printed(tmp_path / "moved", VERSIONS)[:2] == ["unpacked", "unpacked"]


def test_modules_ahead_on_the_search_path_are_ahead_of_the_file(venv, tmp_path):
    write(tmp_path, {"torch/__init__.py": "", "torch/layers.py": "version = 'own'\n"})
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from torch import layers; print(layers.version)"
    assert printed(venv, program) == ["own"]


def test_modules_know_their_files_and_sources(venv):
    program = """
import importlib.resources, inspect, pkgutil, sys, torch, torch.data, torch.layers as layers
print(torch.__file__, torch.__path__[0], torch.data.__package__, layers.__file__, layers.__spec__.has_location)
print(layers.__cached__, *sorted(module.name for module in pkgutil.iter_modules(torch.__path__)))
print(importlib.resources.files(torch) / "layers.py", inspect.getsource(layers).split()[0])
"""
    torch = str(venv / SITE / "torch")
    tag = sys.implementation.cache_tag
    assert printed(venv, program) == [
        f"{torch}/__init__.py", torch, "torch.data", f"{torch}/layers.py", "True",
        f"{torch}/__pycache__/layers.{tag}.pyc", "data", "later", "layers", "other",
        f"{torch}/layers.py", "def",
    ]  # fmt: skip


def test_a_traceback_names_the_line(venv):
    done = subprocess.run([venv / "bin" / "python", "-c", "import torch; torch.layers.fail()"],
                          capture_output=True, text=True)  # fmt: skip
    assert f'File "{venv / SITE}/torch/layers.py", line 2, in fail' in done.stderr
    assert done.returncode == 1


def test_an_absent_module_is_absent(venv):
    program = """
import importlib.util, sys, torch
del sys.modules["torch.by_hand"]
print(*(importlib.util.find_spec(name) for name in ("absent", "torch.absent", "torch.by_hand")))
"""
    assert printed(venv, program) == ["None"] * 3

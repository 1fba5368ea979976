"""Other installations of Python and torch stay out."""

import sys

import pytest
from pytorch_launch import container, isolation
from pytorch_launch.isolation import isolate, shadowing
from tables import name, table
from variables import changed, variables

PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def directory(path, *files):
    """Make a directory that holds empty files of the given names; returns its path."""
    path.mkdir(parents=True)
    for file in files:
        (path / file).touch()
    return str(path)


FILES = {"own": "model.py", "other": "torch.py", "packages": "torch", "fabric": "libfabric.so"}
FILES.update({name: f"{name}.so" for name in ("libtorch", "libtorch_cpu", "libc10")})
#: Variables, what they become, and how the warnings begin.
ISOLATED = """
variables                                        | become                    | warnings
PYTHONPATH={other}:{own}:{packages}              | PYTHONPATH={own}          | PYTHONPATH: ignoring {other}, {packages},
LD_LIBRARY_PATH={libtorch}:{fabric}              | LD_LIBRARY_PATH={fabric}  | LD_LIBRARY_PATH: ignoring {libtorch},
LD_LIBRARY_PATH={libtorch_cpu}:{fabric}          | LD_LIBRARY_PATH={fabric}  | LD_LIBRARY_PATH: ignoring {libtorch_cpu},
LD_LIBRARY_PATH={libc10}:{fabric}                | LD_LIBRARY_PATH={fabric}  | LD_LIBRARY_PATH: ignoring {libc10},
PYTHONHOME=/usr                                  | PYTHONHOME=               | PYTHONHOME: ignoring /usr,
PYTHONPATH={own}:/not/there: LD_LIBRARY_PATH={own} |                         |
PYTHONPATH={other} PYTHONHOME=/usr PYTORCH_LAUNCH_KEEP_PATHS=1 |             |
PYTHONHOME=/usr PYTORCH_LAUNCH_KEEP_PATHS=0      | PYTHONHOME=               | PYTHONHOME: ignoring /usr,
"""


@pytest.mark.parametrize("row", table(ISOLATED), ids=name)
def test_directories_of_another_python_or_torch_are_left_out_and_said(tmp_path, row):
    places = {place: directory(tmp_path / place, file) for place, file in FILES.items()}
    changes, warnings = isolate(variables(row["variables"].format(**places)))
    assert {name: value or "" for name, value in changes.items()} == variables(row["become"].format(**places))
    texts = [str(problem) for problem in warnings]
    assert len(texts) == bool(row["warnings"])
    assert not texts or texts[0].startswith(row["warnings"].format(**places))
    assert not texts or texts[0].endswith("To keep it, export PYTORCH_LAUNCH_KEEP_PATHS=1")


ADDED = """
directory                       | names                                 | are kept
lib/{python}/site-packages      | einops einops-0.8.dist-info __pycache__ | yes
lib/{python}/site-packages      | einops numpy                          |
lib/{python}/site-packages      | torch                                 |
lib/python3.1/site-packages     | einops                                |
lib/python3/dist-packages       | einops                                |
"""


@pytest.mark.parametrize("row", table(ADDED), ids=name)
def test_packages_that_a_module_adds_to_this_python_are_kept(monkeypatch, tmp_path, row):
    """If the environment has none of them."""
    directory(tmp_path / f"own/lib/{PYTHON}/site-packages", "torch", "numpy", "numpy-2.4.dist-info", "__pycache__")
    added = directory(tmp_path / "module" / row["directory"].format(python=PYTHON), *row["names"].split())
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    assert bool(isolate({"PYTHONPATH": f"{added}/"})[0]) == (row["are kept"] != "yes")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "absent"))  # without an environment to compare with
    assert isolate({"PYTHONPATH": f"{added}/"})[0]


def test_in_a_container_what_the_image_brings_is_its_own(tmp_path, monkeypatch):
    """On the file system of its root, or of /usr, unlike what is bound into it from the host."""
    brought = directory(tmp_path / "site-packages", "torch.py")
    devices = {"/": 1, "/usr": 2}
    for module in (container, isolation):
        monkeypatch.setattr(module, "device", devices.get)
    for variable in ("APPTAINER_CONTAINER", "SHIFTER_IMAGEREQUEST"):
        for number, changes in ((1, {}), (2, {}), (3, {"PYTHONPATH": None})):
            devices[brought] = number
            assert isolate({"PYTHONPATH": brought, variable: "image"})[0] == changes
            assert isolate({"PYTHONPATH": brought})[0] == {"PYTHONPATH": None}


HIDING = """
variables                                  | is named
SIFPYTORCH=/module                         | yes
SIFPYTORCH=/module PYTHONNOUSERSITE=1      |
SIFPYTORCH=/module PYTORCH_LAUNCH_KEEP_PATHS=1 |
                                           |
EBROOTPYTORCH=/module                      |
"""


@pytest.mark.parametrize("row", table(HIDING), ids=name)
def test_a_torch_of_the_user_that_hides_the_modules_is_named(tmp_path, monkeypatch, row):
    """A venv module puts its own torch first."""
    torch = directory(tmp_path / "lib" / PYTHON / "site-packages" / "torch")
    message = f"{torch} hides the torch of /module. To use it, remove this one: `rm -r {torch} {torch}-*.dist-info`"
    env = changed({}, row["variables"], PYTHONUSERBASE=str(tmp_path))
    assert [str(problem) for problem in shadowing(env)] == [message] * (row["is named"] == "yes")
    monkeypatch.setattr(isolation, "USER_VENV", str(tmp_path))
    (problem,) = shadowing({"EBROOTPYTORCH": "/module", "PYTHONUSERBASE": "/nowhere"})
    assert str(problem) == message

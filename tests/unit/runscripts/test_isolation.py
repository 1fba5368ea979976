"""Other installations of packages stay out, the user's own code stays in."""

import sys

import pytest
from pytorch_launch import active
from pytorch_launch.active import isolate, shadowing


@pytest.fixture
def directory(tmp_path):
    """Make a directory that holds empty files of the given names."""

    def make(name, *files):
        path = tmp_path / name
        path.mkdir(parents=True)
        for file in files:
            (path / file).touch()
        return str(path)

    return make


def test_a_directory_with_another_torch_is_left_out_and_said(directory, tmp_path):
    own = directory("src", "model.py")
    poison = directory("other", "torch.py")
    package = str(tmp_path / "packages")
    (tmp_path / "packages" / "torch").mkdir(parents=True)
    changes, warnings = isolate({"PYTHONPATH": f"{poison}:{own}:{package}"})
    assert changes == {"PYTHONPATH": own}
    assert len(warnings) == 1
    assert f"PYTHONPATH: ignoring {poison}, {package}, which belongs to another Python" in str(warnings[0])
    assert "PYTORCH_LAUNCH_KEEP_PATHS=1" in str(warnings[0])


@pytest.mark.parametrize(
    ("entry", "names", "kept"),
    [
        ("lib/python{}.{}/site-packages", ["einops", "einops-0.8.dist-info", "__pycache__"], True),
        ("lib/python{}.{}/site-packages", ["einops", "numpy"], False),  # another numpy than the environment's
        ("lib/python{}.{}/site-packages", ["torch"], False),
        ("lib/python3.1/site-packages", ["einops"], False),  # of another Python
        ("lib/python3/dist-packages", ["einops"], False),
    ],
)
def test_packages_that_a_module_adds_to_this_python_are_kept(directory, monkeypatch, tmp_path, entry, names, kept):
    version = sys.version_info[:2]
    own = "own/lib/python{}.{}/site-packages".format(*version)
    directory(own, "torch", "numpy", "numpy-2.4.dist-info", "__pycache__")
    added = directory(f"module/{entry.format(*version)}", *names)
    for prefix, kept_here in (("own", kept), ("absent", False)):  # without an environment to compare with
        monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
        changes, warnings = isolate({"PYTHONPATH": f"{added}/"})
        assert (changes == {}) == (warnings == []) == kept_here


def test_the_users_own_code_is_passed_in(directory):
    own = directory("src", "model.py")
    assert isolate({"PYTHONPATH": f"{own}:/not/there:", "LD_LIBRARY_PATH": own}) == isolate({}) == ({}, [])


@pytest.mark.parametrize("library", ["libtorch.so", "libtorch_cpu.so", "libc10.so"])
def test_libraries_of_another_torch_are_left_out_and_others_stay(directory, library):
    fabric = directory("fabric", "libfabric.so")
    changes, warnings = isolate({"LD_LIBRARY_PATH": f"{directory('other', library)}:{fabric}"})
    assert changes == {"LD_LIBRARY_PATH": fabric}
    assert len(warnings) == 1


def test_pythonhome_is_left_out_and_what_the_user_insists_on_is_kept(directory):
    changes, (_,) = isolate({"PYTHONHOME": "/usr"})
    assert changes == {"PYTHONHOME": None}
    env = {"PYTHONPATH": directory("other", "torch.py"), "PYTHONHOME": "/usr", "PYTORCH_LAUNCH_KEEP_PATHS": "1"}
    assert isolate(env) == ({}, [])
    assert isolate({**env, "PYTORCH_LAUNCH_KEEP_PATHS": "0"})[0] == {"PYTHONPATH": None, "PYTHONHOME": None}


def test_in_a_container_what_the_image_brings_is_its_own(directory, monkeypatch):
    """On the file system of its root, or of its Python's directory, unlike what is bound into it from the host."""
    brought = directory("site-packages", "torch.py")
    devices = {"/": 1, active.sys.prefix: 2, brought: 3}
    real = active.os.stat

    class Found:
        def __init__(self, path):
            self.st_dev = devices[path]

    monkeypatch.setattr("posix.stat", lambda path: Found(path) if path in devices else real(path))
    for name in ("APPTAINER_CONTAINER", "SHIFTER_IMAGEREQUEST"):
        devices[brought] = 3
        assert isolate({"PYTHONPATH": brought, name: "image"})[0] == {"PYTHONPATH": None}
        for own in ("/", active.sys.prefix):
            devices[brought] = devices[own]
            assert isolate({"PYTHONPATH": brought, name: "image"}) == ({}, [])
            assert isolate({"PYTHONPATH": brought})[0] == {"PYTHONPATH": None}


@pytest.fixture
def own_torch(tmp_path):
    """A directory of the user's packages, with a torch for this Python; and the warning about it."""
    torch = tmp_path / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/torch"
    torch.mkdir(parents=True)
    remedy = f"To use the module's torch, remove this one: `rm -r {torch} {torch}-*.dist-info`"
    message = f"{torch} hides the torch of /module. {remedy}"
    return str(tmp_path), message


def test_a_torch_that_the_user_installed_over_the_images_or_in_user_software_is_named(own_torch, monkeypatch):
    base, message = own_torch
    assert [*map(str, shadowing({"SIFPYTORCH": "/module", "PYTHONUSERBASE": base}))] == [message]
    monkeypatch.setattr(active, "USER_VENV", base)
    assert [*map(str, shadowing({"EBROOTPYTORCH": "/module", "PYTHONUSERBASE": "/nowhere"}))] == [message]


def test_a_torch_that_is_not_imported_or_is_wanted_is_not_named(own_torch):
    for env in (
        *({}, {"EBROOTPYTORCH": "/m"}),  # no module; a venv module, which puts its own first
        *({"SIFPYTORCH": "/m", "PYTHONNOUSERSITE": "1"}, {"SIFPYTORCH": "/m", "PYTORCH_LAUNCH_KEEP_PATHS": "1"}),
    ):
        assert shadowing({**env, "PYTHONUSERBASE": own_torch[0]}) == []


def test_an_image_without_variables_of_its_own_is_recognized_by_its_runscripts(monkeypatch):
    found = {"/runscripts"}
    monkeypatch.setattr(active, "exists", lambda path: path in found)
    assert active.in_container({"PYTORCH_IMAGE": "image.sqsh"})
    assert not active.in_container({})  # an image of another kind, or a directory of the host
    found.clear()
    assert not active.in_container({"PYTORCH_IMAGE": "image.sqsh"})


def test_a_directory_that_an_image_does_not_see_is_told_the_line_of_its_engine():
    lines = [active.bind_line(env, "/data") for env in ({"PYTORCH_MOUNTS": "/own:/own"}, {})]
    assert lines == ["mount it: `export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data`", "mount /data in the image"]

"""Which Python runs, that of the active environment or of the module; other installations stay out."""

import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_launch import LaunchError, active
from pytorch_launch.active import choose_python, isolate, shadowing

VERSION = ".".join(map(str, sys.version_info[:3]))
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def make_python(directory, torch=False):
    """A Python below a directory, with a torch or without."""
    (directory / "bin").mkdir(parents=True)
    (directory / "bin" / PYTHON).touch()
    (directory / "bin" / "python").symlink_to(PYTHON)
    (directory / "lib" / PYTHON / "site-packages" / ("torch" if torch else "numpy")).mkdir(parents=True)
    return directory


@pytest.fixture
def module(tmp_path):
    """The environment of a loaded venv module, whose torch is in its base."""
    root = tmp_path / "PyTorch"
    make_python(root / "venv", torch=True)
    return {"CONTAINERROOT": str(root), "EBROOTPYTORCH": str(root), "PATH": f"{root}/bin:{root}/venv/bin:/usr/bin:/bin"}


@pytest.fixture
def make(tmp_path, module):
    """Make an environment of the user's on top of a Python, by default the module's; returns its path."""

    def run(name, home=None, system=True, torch=False, version=VERSION, key="version"):
        directory = make_python(tmp_path / name, torch)
        home = home or f"{module['CONTAINERROOT']}/venv/bin"
        lines = [f"home = {home}", f"include-system-site-packages = {str(system).lower()}", f"{key} = {version}"]
        (directory / "pyvenv.cfg").write_text("\n".join(lines))
        return str(directory)

    return run


@pytest.fixture
def conda(tmp_path):
    """Make a conda environment of the user's; returns its path."""

    def run(name, torch=False):
        directory = make_python(tmp_path / name, torch)
        (directory / "conda-meta").mkdir()
        return str(directory)

    return run


def with_path(env, *directories, **more):
    """The environment after these directories were put in front of PATH."""
    return {**env, "PATH": ":".join([*(f"{each}/bin" for each in directories), env["PATH"]]), **more}


def seen(choice):
    return choice.prefix, [*map(str, choice.warnings)]


@pytest.mark.parametrize(
    ("path", "variable", "changes"),
    [
        ("{v}/bin:{module}", "{v}", {}),
        # active before the module was loaded
        ("{module}:{v}/bin:/more", "{v}", {"PATH": "{v}/bin:{module}:/more"}),
        # the lines of LUMI and CSCS export no VIRTUAL_ENV
        ("{v}/bin:{module}", None, {"VIRTUAL_ENV": "{v}"}),
        ("{v}/bin:{module}", "{second}", {"VIRTUAL_ENV": "{v}"}),
        ("{module}", "{v}/", {"PATH": "{v}/bin:{module}", "VIRTUAL_ENV": "{v}"}),
    ],
)
def test_an_active_environment_that_sees_the_modules_torch_runs(module, make, path, variable, changes):
    texts = {"v": make("v"), "second": make("second"), "module": module["PATH"]}
    exported = {"VIRTUAL_ENV": variable.format(**texts)} if variable else {}
    choice = choose_python({**module, **exported, "PATH": path.format(**texts)})
    assert seen(choice) == (texts["v"], [])
    assert choice.changes == {name: value.format(**texts) for name, value in changes.items()}


def test_what_uv_and_virtualenv_record_and_a_path_file_that_names_the_modules_packages_will_do(module, make):
    prefix = make("virtualenv", key="version_info", version=f"{VERSION}.final.0")
    assert choose_python(with_path(module, prefix)).prefix == prefix
    packages = f"{module['CONTAINERROOT']}/venv/lib/{PYTHON}/site-packages"
    for name, line in (("plain", packages), ("code", f"import site; site.addsitedir('{packages}')")):
        prefix = make(name, system=False)
        Path(prefix, "lib", PYTHON, "site-packages", "module.pth").write_text(line)
        assert seen(choose_python(with_path(module, prefix))) == (prefix, [])


def test_a_torch_of_its_own_runs_with_one_warning(module, make, conda):
    for prefix in (make("v", system=False, torch=True), conda("c", torch=True)):
        choice = choose_python(with_path(module, prefix))
        torch = f"{prefix}/lib/{PYTHON}/site-packages/torch"
        fault = f"{prefix} is active: using its torch, {torch}, in place of the module's"
        assert seen(choice) == (prefix, [f"{fault}. To use the module's, deactivate it"])


@pytest.mark.parametrize("order", ["before", "after"])
def test_without_a_torch_the_modules_python_runs_with_one_warning(module, make, conda, order):
    for prefix in (make("v", system=False), conda("base")):
        path = with_path(module, prefix)["PATH"] if order == "after" else f"{module['PATH']}:{prefix}/bin"
        choice = choose_python({**module, "PATH": path})
        assert (choice.prefix, len(choice.warnings)) == (None, 1)
        assert f"{prefix} is active and has no torch: using the module's Python" in str(choice.warnings[0])
        assert {**module, **choice.changes}["PATH"].split(":")[:2] == module["PATH"].split(":")[:2]


def test_environments_of_the_module_and_without_a_module_do_not_count(module, make, conda, tmp_path):
    root, base, own = module["CONTAINERROOT"], conda("Anaconda"), make("v", system=False)
    # the conda that the module's venv stands on
    (tmp_path / "PyTorch" / "venv" / "include").mkdir()
    (tmp_path / "PyTorch" / "venv" / "include" / PYTHON).symlink_to(f"{base}/include/{PYTHON}")
    for env in (
        {**module, "VIRTUAL_ENV": f"{root}/venv"},
        {**module, "VIRTUAL_ENV": active.USER_VENV},
        {**module, "PATH": f"{module['PATH']}:{base}/bin"},
        {"PATH": f"{own}/bin:/bin", "VIRTUAL_ENV": own},
    ):
        assert seen(choose_python(env)) == (None, [])


def test_a_user_can_insist_on_the_modules_python(module, make):
    prefix = make("v", torch=True)
    assert seen(choose_python(with_path(module, prefix, PYTORCH_LAUNCH_ACTIVE="0"))) == (None, [])
    assert choose_python(with_path(module, prefix, PYTORCH_LAUNCH_ACTIVE="1")).prefix == prefix


def test_an_environment_or_a_python_that_was_deleted_is_named(module, make):
    prefix = make("v", home="/opt/python/bin", version="3.9.1")
    fault = "v is active, but its Python, /opt/python/bin/python3.9, does not exist on this"
    with pytest.raises(LaunchError, match=fault):
        choose_python(with_path(module, prefix))
    (warning,) = choose_python({**module, "VIRTUAL_ENV": "/not/there"}).warnings
    assert str(warning) == (
        "VIRTUAL_ENV=/not/there is active, but not visible on this host: using the module's Python. Unset VIRTUAL_ENV"
    )


# In an image


@pytest.fixture
def image(tmp_path, monkeypatch):
    """The environment in an image whose files are below `tmp_path/image`; others are bound from the host."""
    make_python(tmp_path / "image" / "opt", torch=True)

    def device(path):
        return None if not Path(path).exists() else 1 if str(path).startswith(str(tmp_path / "image")) else 2

    monkeypatch.setattr(active, "image_devices", lambda _env: {1})
    monkeypatch.setattr(active, "device", device)
    path = f"/runscripts:{tmp_path}/image/opt/bin:/usr/bin"
    return {"APPTAINER_CONTAINER": "/image.sif", "SIFPYTORCH": "/image.sif", "CONTAINERROOT": "/module", "PATH": path}


def test_the_search_path_of_the_host_names_an_environment_in_the_image(image, make, tmp_path):
    prefix = make("v", home=f"{tmp_path}/image/opt/bin")
    choice = choose_python({**image, "USER_PATH": f"{prefix}/bin:/usr/bin"})
    assert seen(choice) == (prefix, [])
    assert choice.changes == {"PATH": f"{prefix}/bin:{image['PATH']}", "VIRTUAL_ENV": prefix}
    inner = make("inner", home=f"{tmp_path}/image/opt/bin")
    assert choose_python(with_path({**image, "USER_PATH": f"{prefix}/bin"}, inner)).prefix == inner


def test_environments_of_the_image_do_not_count_and_its_python_comes_before_one_without_a_torch(image, make, tmp_path):
    (tmp_path / "image" / "opt" / "conda-meta").mkdir()
    assert seen(choose_python({**image, "CONDA_PREFIX": f"{tmp_path}/image/opt"})) == (None, [])
    prefix = make("v", home=f"{tmp_path}/image/opt/bin", system=False)
    choice = choose_python(with_path(image, prefix))
    assert (choice.prefix, len(choice.warnings)) == (None, 1)
    assert choice.changes["PATH"] == f"{image['PATH']}:{prefix}/bin"


def test_a_link_to_the_images_python_will_do_under_another_name_but_not_to_another_python(image, make, tmp_path):
    """uv records /usr/local/bin, in which an image may have python3 alone, as a link."""
    home = tmp_path / "image" / "local" / "bin"
    home.mkdir(parents=True)
    prefix = make("v", home=home)
    (tmp_path / "image/opt/bin/python3.1").touch()
    for name, is_right in ((PYTHON, True), ("python3.1", False)):
        (home / "python3").symlink_to(tmp_path / "image/opt/bin" / name)
        if is_right:
            assert seen(choose_python(with_path(image, prefix))) == (prefix, [])
        else:
            with pytest.raises(LaunchError, match=f"local/bin/{PYTHON}, does not exist in this image"):
                choose_python(with_path(image, prefix))
        (home / "python3").unlink()


def test_an_environment_of_the_hosts_python_is_an_error_in_the_image_at_the_same_path_too(
    image, make, tmp_path, monkeypatch
):
    make_python(tmp_path / "pyenv")
    prefix = make("host", home=f"{tmp_path}/pyenv/bin", torch=True)
    with pytest.raises(LaunchError, match="is not the image's. Deactivate it, or make it again in this image: `python"):
        choose_python(with_path(image, prefix))
    python = tmp_path / "image" / "opt" / "bin" / PYTHON
    monkeypatch.setattr(active.sys, "_base_executable", str(python))
    prefix = make("v", home=python.parent, version=f"{VERSION}9")
    with pytest.raises(LaunchError, match=f"{PYTHON}, is {VERSION} in this image, not {VERSION}9"):
        choose_python(with_path(image, prefix))


def test_an_environment_that_the_image_does_not_see_is_an_error_with_the_line_that_works(image):
    fault = "=/scratch/v is active, but not visible in this image"
    remedy = "Deactivate it, or bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/scratch/v`"
    conda = {"CONDA_PREFIX": "/scratch/v", "CONDA_DEFAULT_ENV": "own"}
    for variables in ({"VIRTUAL_ENV": "/scratch/v"}, conda):
        with pytest.raises(LaunchError) as raised:
            choose_python({**image, **variables})
        assert str(raised.value) == f"{next(iter(variables))}{fault}. {remedy}"
    # which each shell activates
    (warning,) = choose_python({**image, **conda, "CONDA_DEFAULT_ENV": "base"}).warnings
    assert warning.fault == f"CONDA_PREFIX{fault}: using the module's Python"


# Where a container starts


def test_a_container_that_fell_back_to_the_home_directory_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = {"HOME": str(tmp_path), "APPTAINER_CONTAINER": "/image.sif"}
    for name in ("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR"):
        with pytest.raises(LaunchError) as raised:
            choose_python({**job, name: "/scratch/job"})
        assert str(raised.value) == (
            f"/scratch/job, the job's directory, is not visible in this image, which started in {tmp_path}. "
            "Bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/scratch/job`"
        )
        choose_python({**job, name: str(tmp_path)})
        choose_python({**job, name: "/scratch/job", "HOME": "/root"})
        choose_python({name: "/scratch/job", "HOME": str(tmp_path)})


def test_a_cleaned_environment_is_an_error_that_names_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(active, "RUNSCRIPTS", str(tmp_path))
    active.check_cleaned({})  # an empty directory of an image
    (tmp_path / "launch.bash").touch()
    active.check_cleaned({"RUNSCRIPTS": "/module/runscripts"})
    with pytest.raises(LaunchError, match="--cleanenv, -e, --containall or APPTAINER_CLEANENV removed them"):
        active.check_cleaned({})


@pytest.mark.parametrize("launcher", ["slurmstepd", "mpirun", "bash"])
def test_so_is_one_of_an_image_that_brings_the_launcher(runscripts, tmp_path, launcher):
    """Its wheel: no directory is bound. The processes above it show what started it."""
    (tmp_path / launcher).symlink_to("/bin/bash")
    program = (
        f"{sys.executable} -I -S {runscripts}/pytorch_launch/__main__.py conda-python-distributed --dry-run; exit $?"
    )
    image = {"APPTAINER_CONTAINER": "/image.sif"}
    for more, is_fault in (
        ({}, False),
        ({**image, "SLURM_JOB_ID": "7"}, False),
        (image, launcher != "bash"),
        ({**image, "USER": "me"}, False),
    ):
        env = {"TMPDIR": str(tmp_path), **more}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = subprocess.run([tmp_path / launcher, "-c", program], env=env, text=True, check=False, **pipes)
        message = f"{launcher} started this image, but its variables are missing: --cleanenv"
        assert (done.returncode, message in done.stderr) == (2 * is_fault, is_fault)


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

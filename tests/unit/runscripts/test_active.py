"""Which Python runs: that of the active environment if it has a torch, else the module's."""

import sys
from pathlib import Path

import pytest
from pytorch_launch import LaunchError, active
from pytorch_launch.active import choose_python

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

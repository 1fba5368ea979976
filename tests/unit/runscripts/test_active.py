"""Which Python runs, that of the active environment or of the module; other installations stay out."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_launch import LaunchError, active
from pytorch_launch.active import choose_python, isolate, shadowing
from variables import variables

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


def conda(path, torch=False):
    """Make a conda environment of the user's; returns its path."""
    directory = make_python(path, torch)
    (directory / "conda-meta").mkdir()
    return str(directory)


@pytest.fixture
def places(module, make, tmp_path):
    """What CHOICES name: the module's PATH and root, and environments of the user's."""
    root, anaconda = module["CONTAINERROOT"], conda(tmp_path / "anaconda")
    found = {"module": module["PATH"], "root": root, "v": make("v"), "second": make("second"), "anaconda": anaconda}
    found["virtualenv"] = make("virtualenv", key="version_info", version=f"{VERSION}.final.0")
    packages = f"{root}/venv/lib/{PYTHON}/site-packages"
    for name, line in (("path", packages), ("code", f"import site; site.addsitedir('{packages}')")):
        found[name] = make(name, system=False)
        Path(found[name], "lib", PYTHON, "site-packages", "module.pth").write_text(line)
    found.update(own=make("own", system=False, torch=True), own_conda=conda(tmp_path / "own_conda", torch=True))
    found.update(plain=make("plain", system=False), base=conda(tmp_path / "base"))
    # on a Python of Red Hat's, whose pip installs to /usr/local/lib64
    found["on_system"] = make("on_system", home=f"{make_python(Path(root, 'usr'))}/bin")
    Path(root, "usr", "local", "lib64", PYTHON, "site-packages", "torch").mkdir(parents=True)
    # the conda that the module's venv stands on
    Path(root, "venv", "include").mkdir()
    Path(root, "venv", "include", PYTHON).symlink_to(f"{anaconda}/include/{PYTHON}")
    return found


def with_path(env, *directories, **more):
    """The environment after these directories were put in front of PATH."""
    return {**env, "PATH": ":".join([*(f"{each}/bin" for each in directories), env["PATH"]]), **more}


def seen(choice):
    return choice.prefix, [*map(str, choice.warnings)]


OWN_TORCH = f"{{0}} is active: using its torch, {{0}}/lib/{PYTHON}/site-packages/torch, in place of the module's."
NO_TORCH = "{0} is active and has no torch: using the module's Python"
GONE = "VIRTUAL_ENV=/not/there is active, but not visible on this host: using the module's Python. Unset VIRTUAL_ENV"
NO_MODULE, BARE = "CONTAINERROOT= EBROOTPYTORCH=", ("{plain}", "{base}")
#: PATH and other variables; which environment runs, how the only warning begins, and what changes.
CHOICES = [
    # those that see the module's torch: also active before the module was loaded; LUMI and CSCS export no VIRTUAL_ENV
    ("{v}/bin:{module}", "VIRTUAL_ENV={v}", "{v}", "", {}),
    ("{module}:{v}/bin:/more", "VIRTUAL_ENV={v}", "{v}", "", {"PATH": "{v}/bin:{module}:/more"}),
    ("{v}/bin:{module}", "", "{v}", "", {"VIRTUAL_ENV": "{v}"}),
    ("{v}/bin:{module}", "VIRTUAL_ENV={second}", "{v}", "", {"VIRTUAL_ENV": "{v}"}),
    ("{module}", "VIRTUAL_ENV={v}/", "{v}", "", {"PATH": "{v}/bin:{module}", "VIRTUAL_ENV": "{v}"}),
    # by what uv and virtualenv record, or by a path file that names the module's packages
    *((f"{name}/bin:{{module}}", "", name, "", None) for name in ("{virtualenv}", "{path}", "{code}")),
    *((f"{name}/bin:{{module}}", "", name, OWN_TORCH.format(name), None) for name in ("{own}", "{own_conda}")),
    ("{on_system}/bin:{module}", "", "{on_system}", "", None),
    # without a torch the module's Python comes first
    *((f"{name}/bin:{{module}}", "", None, NO_TORCH.format(name), {"PATH": f"{{module}}:{name}/bin"}) for name in BARE),
    *((f"{{module}}:{name}/bin", "", None, NO_TORCH.format(name), {}) for name in BARE),
    # the module's own do not count, nor does any without a module
    *(("{module}", f"VIRTUAL_ENV={own}", None, "", {}) for own in ("{root}/venv", active.USER_VENV)),
    ("{module}:{anaconda}/bin", "", None, "", {}),
    ("{plain}/bin:/bin", f"{NO_MODULE} VIRTUAL_ENV={{plain}}", None, "", {}),
    # a user can insist on the module's
    ("{own}/bin:{module}", "PYTORCH_LAUNCH_ACTIVE=0", None, "", {}),
    ("{own}/bin:{module}", "PYTORCH_LAUNCH_ACTIVE=1", "{own}", OWN_TORCH.format("{own}"), None),
    ("{module}", "VIRTUAL_ENV=/not/there", None, GONE, {}),
]


@pytest.mark.parametrize(("path", "more", "prefix", "warning", "changes"), CHOICES)
def test_the_active_environment_runs_if_it_has_a_torch(module, places, path, more, prefix, warning, changes):
    env = {**module, "PATH": path.format(**places), **variables(more.format(**places))}
    choice = choose_python(env)
    assert choice.prefix == (prefix and prefix.format(**places))
    assert len(choice.warnings) == bool(warning)
    assert all(str(each).startswith(warning.format(**places)) for each in choice.warnings)
    if changes is not None:
        changed = {name: value for name, value in choice.changes.items() if env.get(name) != value}
        assert changed == {name: value.format(**places) for name, value in changes.items()}


def test_a_python_of_another_name_than_its_version_and_one_without_a_version_are_there(module, make, tmp_path):
    """As python3.13 is a link to python3.13t; and other tools write no version."""
    home = tmp_path / "home"
    home.mkdir()
    (home / f"{PYTHON}t").touch()
    for name in (PYTHON, "python"):
        (home / name).symlink_to(f"{PYTHON}t")
    for version, key in ((VERSION, "Version"), ("", "created-by")):
        prefix = make("t", home=home, version=version, key=key, torch=True)
        assert choose_python(with_path(module, prefix)).prefix == prefix
        shutil.rmtree(prefix)


def test_an_environment_whose_python_was_deleted_is_named(module, make):
    prefix = make("v", home="/opt/python/bin", version="3.9.1")
    fault = "v is active, but its Python, /opt/python/bin/python3.9, does not exist on this"
    with pytest.raises(LaunchError, match=fault):
        choose_python(with_path(module, prefix))


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


def test_an_environment_of_the_hosts_python_is_an_error_in_the_image_at_its_path_too(
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
    for active_in in ({"VIRTUAL_ENV": "/scratch/v"}, conda):
        with pytest.raises(LaunchError) as raised:
            choose_python({**image, **active_in})
        assert str(raised.value) == f"{next(iter(active_in))}{fault}. {remedy}"
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
    main, image = f"{runscripts}/pytorch_launch/__main__.py", {"APPTAINER_CONTAINER": "/image.sif"}
    program = f"{sys.executable} -I -S {main} conda-python-distributed --dry-run; exit $?"
    passed_on = [({**image, name: "7"}, False) for name in ("SLURM_JOB_ID", "USER")]
    for more, is_fault in (({}, False), (image, launcher != "bash"), *passed_on):
        env = {"TMPDIR": str(tmp_path), **more}
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        done = subprocess.run([tmp_path / launcher, "-c", program], env=env, text=True, check=False, **pipes)
        message = f"{launcher} started this image, but its variables are missing: --cleanenv"
        assert (done.returncode, message in done.stderr) == (2 * is_fault, is_fault)


def directory(path, *files):
    """Make a directory that holds empty files of the given names; returns its path."""
    path.mkdir(parents=True)
    for file in files:
        (path / file).touch()
    return str(path)


LIBRARIES = ("libtorch", "libtorch_cpu", "libc10")
NAMED = "PYTHONPATH: ignoring {other}, {packages}, which belongs to another Python or torch. To keep it, export "
BOTH = {"PYTHONPATH": "{other}", "PYTHONHOME": "/usr"}
#: Variables, what changes, and how each warning begins.
ISOLATED = [
    ({"PYTHONPATH": "{other}:{own}:{packages}"}, {"PYTHONPATH": "{own}"}, [f"{NAMED}PYTORCH_LAUNCH_KEEP_PATHS=1"]),
    *(({"LD_LIBRARY_PATH": f"{{{name}}}:{{fabric}}"}, {"LD_LIBRARY_PATH": "{fabric}"}, ["LD_"]) for name in LIBRARIES),
    ({"PYTHONHOME": "/usr"}, {"PYTHONHOME": None}, ["PYTHONHOME"]),
    # the user's own code, and what the user insists on
    ({"PYTHONPATH": "{own}:/not/there:", "LD_LIBRARY_PATH": "{own}"}, {}, []),
    ({**BOTH, "PYTORCH_LAUNCH_KEEP_PATHS": "1"}, {}, []),
    ({**BOTH, "PYTORCH_LAUNCH_KEEP_PATHS": "0"}, dict.fromkeys(BOTH), ["PYTHONHOME", "PYTHONPATH"]),
]


@pytest.mark.parametrize(("env", "changes", "warnings"), ISOLATED)
def test_directories_of_another_python_or_torch_are_left_out_and_said(tmp_path, env, changes, warnings):
    files = {"own": "model.py", "other": "torch.py", "packages": "torch", "fabric": "libfabric.so"}
    places = {name: directory(tmp_path / name, file) for name, file in files.items()}
    places.update({name: directory(tmp_path / name, f"{name}.so") for name in LIBRARIES})
    found, problems = isolate({name: value.format(**places) for name, value in env.items()})
    assert found == {name: value and value.format(**places) for name, value in changes.items()}
    assert len(problems) == len(warnings)
    assert all(str(each).startswith(text.format(**places)) for each, text in zip(problems, warnings))


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
def test_packages_that_a_module_adds_to_this_python_are_kept(monkeypatch, tmp_path, entry, names, kept):
    version = sys.version_info[:2]
    own = "own/lib/python{}.{}/site-packages".format(*version)
    directory(tmp_path / own, "torch", "numpy", "numpy-2.4.dist-info", "__pycache__")
    added = directory(tmp_path / f"module/{entry.format(*version)}", *names)
    for prefix, kept_here in (("own", kept), ("absent", False)):  # without an environment to compare with
        monkeypatch.setattr(sys, "prefix", str(tmp_path / prefix))
        changes, warnings = isolate({"PYTHONPATH": f"{added}/"})
        assert (changes == {}) == (warnings == []) == kept_here


def test_in_a_container_what_the_image_brings_is_its_own(tmp_path, monkeypatch):
    """On the file system of its root, or of /usr, unlike what is bound into it from the host."""
    brought = directory(tmp_path / "site-packages", "torch.py")
    devices = {"/": 1, "/usr": 2, brought: 3}
    real = active.os.stat

    class Found:
        def __init__(self, path):
            self.st_dev = devices[path]

    monkeypatch.setattr("posix.stat", lambda path: Found(path) if path in devices else real(path))
    for name in ("APPTAINER_CONTAINER", "SHIFTER_IMAGEREQUEST"):
        devices[brought] = 3
        assert isolate({"PYTHONPATH": brought, name: "image"})[0] == {"PYTHONPATH": None}
        for own in ("/", "/usr"):
            devices[brought] = devices[own]
            assert isolate({"PYTHONPATH": brought, name: "image"}) == ({}, [])
            assert isolate({"PYTHONPATH": brought})[0] == {"PYTHONPATH": None}


@pytest.mark.parametrize(
    ("env", "is_named"),
    [
        ({"SIFPYTORCH": "/module"}, True),
        *(({"SIFPYTORCH": "/module", name: "1"}, False) for name in ("PYTHONNOUSERSITE", "PYTORCH_LAUNCH_KEEP_PATHS")),
        *(({}, False), ({"EBROOTPYTORCH": "/module"}, False)),  # a venv module puts its own first
    ],
)
def test_a_torch_of_the_user_that_hides_the_modules_is_named(tmp_path, monkeypatch, env, is_named):
    torch = tmp_path / "lib" / PYTHON / "site-packages" / "torch"
    torch.mkdir(parents=True)
    remedy = f"To use it, remove this one: `rm -r {torch} {torch}-*.dist-info`"
    message = f"{torch} hides the torch of /module. {remedy}"
    assert [*map(str, shadowing({**env, "PYTHONUSERBASE": str(tmp_path)}))] == [message] * is_named
    monkeypatch.setattr(active, "USER_VENV", str(tmp_path))
    assert [*map(str, shadowing({"EBROOTPYTORCH": "/module", "PYTHONUSERBASE": "/nowhere"}))] == [message]


def test_the_runscripts_of_a_host_are_no_image(monkeypatch):
    monkeypatch.setattr(active, "exists", lambda path: path == "/runscripts")
    assert active.in_container({"PYTORCH_IMAGE": "image.sqsh"}) and not active.in_container({})


def test_a_directory_that_an_image_does_not_see_is_told_the_line_of_its_engine():
    lines = [active.bind_line(env, "/data") for env in ({"PYTORCH_MOUNTS": "/own:/own"}, {})]
    assert lines == ["mount it: `export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data`", "mount /data in the image"]

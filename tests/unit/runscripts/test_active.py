"""Which Python runs, that of the active environment or of the module."""

import subprocess
import sys
from pathlib import Path

import pytest
from programs import program
from pytorch_launch import LaunchError, active
from pytorch_launch.active import choose_python
from tables import name, table
from variables import changed, variables

VERSION = ".".join(map(str, sys.version_info[:3]))
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"


def make_python(directory, torch=False, home=None):
    """A Python below a directory, with a torch or without, and with its own interpreter or the one in `home`."""
    (directory / "bin").mkdir(parents=True)
    if home is None:
        (directory / "bin" / PYTHON).touch()
    else:
        (directory / "bin" / PYTHON).symlink_to(f"{home}/{PYTHON}")
    (directory / "bin" / "python").symlink_to(PYTHON)
    (directory / "lib" / PYTHON / "site-packages" / ("torch" if torch else "numpy")).mkdir(parents=True)
    return directory


@pytest.fixture
def module(tmp_path):
    """The environment of a loaded venv module, whose torch is in its base."""
    root = tmp_path / "PyTorch"
    make_python(root / "venv", torch=True)
    return {"CONTAINERROOT": str(root), "EBROOTPYTORCH": str(root), "PATH": f"{root}/bin:{root}/venv/bin"}


@pytest.fixture
def make(tmp_path, module):
    """Make an environment of the user's on top of a Python, by default the module's; returns its path."""

    def run(name, home=None, system=True, torch=False, version=VERSION, key="version"):
        home = home or f"{module['CONTAINERROOT']}/venv/bin"
        directory = make_python(tmp_path / name, torch, home)
        lines = [f"home = {home}", f"include-system-site-packages = {str(system).lower()}", f"{key} = {version}"]
        (directory / "pyvenv.cfg").write_text("\n".join(lines))
        return str(directory)

    return run


def conda(path, torch=False):
    """Make a conda environment of the user's; returns its path."""
    directory = make_python(path, torch)
    (directory / "conda-meta").mkdir()
    return str(directory)


OWN_TORCH = "is active: using its torch, "
NO_TORCH = " is active and has no torch: using the module's Python. Run `deactivate`"
#: PATH, with the module's entries as `m`, and other variables; which environment runs, a part of the only warning, and
#: what changes. Environments are named by their directories.
CHOICES = """
path              | variables             | runs | warning    | PATH              | VIRTUAL_ENV
# those that see the module's torch, active before or after the module was loaded; LUMI and CSCS export no VIRTUAL_ENV
v/bin:m           | VIRTUAL_ENV={0}/v     | v    |            | v/bin:m           | v
m:v/bin:/more     | VIRTUAL_ENV={0}/v     | v    |            | v/bin:m:/more     | v
v/bin:m           |                       | v    |            | v/bin:m           | v
m:v/bin           |                       | v    |            | v/bin:m           | v
m                 | VIRTUAL_ENV={0}/v     | v    |            | v/bin:m           | v
v/bin:m           | VIRTUAL_ENV={0}/second | second |          | second/bin:v/bin:m | second
m                 | CONDA_PREFIX={0}/own_conda | own_conda | OWN  | own_conda/bin:m   |
v/bin:m           | CONDA_PREFIX={0}/own_conda | v |        | v/bin:m           | v
# what uv and virtualenv record, and a path file that names the module's packages
virtualenv/bin:m  |                       | virtualenv |      |                   |
path/bin:m        |                       | path |            |                   |
code/bin:m        |                       | code |            |                   |
copy/bin:m        |                       | copy |            |                   |
on_system/bin:m   |                       | on_system |       |                   |
own/bin:m         |                       | own  | OWN        |                   |
own_conda/bin:m   |                       | own_conda | OWN   |                   |
# conda's base, which a shell activates
base/bin:m        | CONDA_PREFIX={0}/base CONDA_DEFAULT_ENV=base | | NO_TORCH | m:base/bin |
m:base/bin        | CONDA_PREFIX={0}/base CONDA_DEFAULT_ENV=base | | NO_TORCH |       |
miniconda/bin:m   |                       |      | NO_TORCH   | m:miniconda/bin   |
# the module's, the Python that it was made from, the system's, and any without a module
m                 | VIRTUAL_ENV={0}/root/venv |      |            |                   |
m                 | VIRTUAL_ENV=/user-software/venv/pytorch | | |                  |
m:anaconda/bin    |                       |      |            |                   |
system/bin:m:v/bin |                      |      |            | m:system/bin:v/bin |
empty/bin:v/bin:m |                       | v    |            |                   |
plain/bin:/bin    | CONTAINERROOT= EBROOTPYTORCH= VIRTUAL_ENV={0}/plain | | |          |
# a user can insist on the module's
own/bin:m         | PYTORCH_LAUNCH_ACTIVE=0 |    |            | m:own/bin         |
own/bin:m         | PYTORCH_LAUNCH_ACTIVE=1 | own | OWN       |                   |
"""


@pytest.fixture
def places(module, make, tmp_path):
    """Make what CHOICES names, below the directory that is returned."""
    root = Path(module["CONTAINERROOT"])
    root.rename(tmp_path / "root")
    root.symlink_to("root")  # sites have links to their software
    packages = f"{root}/venv/lib/{PYTHON}/site-packages"
    make("v")
    make("second")
    make("virtualenv", key="version_info", version=f"{VERSION}.final.0")
    for made, line in (("path", packages), ("code", f"import site; site.addsitedir('{packages}')")):
        Path(make(made, system=False), "lib", PYTHON, "site-packages", "module.pth").write_text(line)
    Path(make("copy"), "bin", PYTHON).unlink()
    Path(tmp_path, "copy/bin", PYTHON).touch()
    make("own", system=False, torch=True)
    make("plain", system=False)
    # on a Python of Red Hat's, whose pip installs to /usr/local/lib64
    make("on_system", home=f"{make_python(root / 'usr')}/bin")
    Path(root, "usr/local/lib64", PYTHON, "site-packages/torch").mkdir(parents=True)
    for kind in ("own_conda", "base", "miniconda", "anaconda"):
        conda(tmp_path / kind, torch=kind == "own_conda")
    for kind in ("base", "miniconda"):
        (tmp_path / kind / "condabin").mkdir()
    make_python(tmp_path / "system")
    (tmp_path / "empty/bin").mkdir(parents=True)
    # the conda that the module's venv stands on
    (root / "venv/include").mkdir()
    (root / "venv/include" / PYTHON).symlink_to(f"{tmp_path}/anaconda/include/{PYTHON}")
    return tmp_path


def expand(text, places, module):
    """A PATH of CHOICES."""
    names = {"m": module["PATH"]}
    return ":".join(names.get(word) or str(places / word) for word in text.split(":"))


@pytest.mark.parametrize("row", table(CHOICES), ids=name)
def test_the_active_environment_runs_if_it_has_a_torch(module, places, row):
    env = {**module, "PATH": expand(row["path"], places, module)}
    env.update(variables(row["variables"].format(places)))
    choice = choose_python(env)
    assert choice.prefix == (f"{places}/{row['runs']}" if row["runs"] else None)
    texts = [str(problem) for problem in choice.warnings]
    assert len(texts) == bool(row["warning"])
    assert not texts or {"OWN": OWN_TORCH, "NO_TORCH": NO_TORCH}[row["warning"]] in texts[0]
    if row["PATH"]:
        assert choice.changes["PATH"] == expand(row["PATH"], places, module)
    if row["VIRTUAL_ENV"]:
        assert choice.changes["VIRTUAL_ENV"] == f"{places}/{row['VIRTUAL_ENV']}"


#: Variables, PATH, and the error.
ERRORS = """
variables                | path       | error
VIRTUAL_ENV=/gone        | m          | VIRTUAL_ENV=/gone is active, but not visible here. Deactivate it
                         | plain/bin:m | plain is active and has no torch. Run `deactivate`
                         | other_conda/bin:m | other_conda is active and has no torch. Run `deactivate` (`conda
CONDA_DEFAULT_ENV=base   | plain/bin:m | plain is active and has no torch. Run `deactivate`
                         | deleted/bin:m | deleted is active, but its Python, /opt/python/bin/python3
"""


@pytest.mark.parametrize("row", table(ERRORS), ids=name)
def test_an_environment_that_cannot_run_is_an_error_with_the_remedy(module, places, make, row):
    conda(places / "other_conda")
    make("deleted", home="/opt/python/bin")
    with pytest.raises(LaunchError) as raised:
        choose_python(changed(module, row["variables"], PATH=expand(row["path"], places, module)))
    assert row["error"] in str(raised.value)


# In an image


@pytest.fixture
def image(tmp_path, monkeypatch):
    """The environment in an image whose files are below `tmp_path/image`; others are bound from the host."""
    make_python(tmp_path / "image" / "opt", torch=True)

    def device(path):
        if not Path(path).exists():
            return None
        return 1 if str(path).startswith((f"{tmp_path}/image", "/usr")) else 2

    monkeypatch.setattr(active, "image_devices", lambda _env: {1})
    monkeypatch.setattr(active, "device", device)
    path = f"/runscripts:{tmp_path}/image/opt/bin:/usr/bin"
    return {"APPTAINER_CONTAINER": "/image.sif", "SIFPYTORCH": "/image.sif", "CONTAINERROOT": "/module", "PATH": path}


def test_the_search_path_of_the_host_names_an_environment_in_the_image(image, make, tmp_path):
    home = f"{tmp_path}/image/opt/bin"
    prefix = make("v", home=home)
    for user_path in (f"{prefix}/bin:/usr/bin", f"/not/visible/bin:{prefix}/bin:/usr/bin"):
        choice = choose_python({**image, "USER_PATH": user_path})
        assert (choice.prefix, choice.warnings) == (prefix, [])
        assert choice.changes == {"PATH": f"{prefix}/bin:{image['PATH']}", "VIRTUAL_ENV": prefix}
    inner = make("inner", home=home)
    assert choose_python({**image, "USER_PATH": f"{prefix}/bin", "PATH": f"{inner}/bin:/usr/bin"}).prefix == inner


def test_environments_of_the_image_do_not_count(image, tmp_path):
    (tmp_path / "image" / "opt" / "conda-meta").mkdir()
    assert choose_python({**image, "CONDA_PREFIX": f"{tmp_path}/image/opt"}) == (None, {}, [])


def test_an_environment_of_the_hosts_python_or_that_the_image_does_not_see_is_an_error(image, make, tmp_path):
    make_python(tmp_path / "pyenv")
    prefix = make("host", home=f"{tmp_path}/pyenv/bin", torch=True)
    with pytest.raises(LaunchError, match="is not the image's. Deactivate it, or make it again here: `python"):
        choose_python({**image, "USER_PATH": f"{prefix}/bin"})
    bind = "is active, but not visible here. Deactivate it, or bind it: `export APPTAINER_BIND=$APPTAINER_BIND,"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        with pytest.raises(LaunchError) as raised:
            choose_python({**image, variable: "/scratch/v"})
        assert str(raised.value) == f"{variable}=/scratch/v {bind}/scratch/v`"
    assert choose_python({**image, "CONDA_PREFIX": "/scratch/base", "CONDA_DEFAULT_ENV": "base"}).prefix is None


def test_the_environment_stays_active_when_a_command_activates_the_modules_own(module, make, tmp_path, runscripts):
    """Its Python is found by VIRTUAL_ENV alone, as in an image that has the host's variables but not its PATH."""
    root = Path(module["CONTAINERROOT"])
    for prefix in (make("v"), root / "venv"):
        python = Path(prefix, "bin", "python")
        python.unlink()
        program(python, f"echo {python} $VIRTUAL_ENV")
    (root / "venv/bin/activate").write_text(f"export VIRTUAL_ENV={root}/venv PATH={root}/venv/bin:$PATH\n")
    activation = {"WITH_CONDA": "true", "WITH_VENV": f"source {root}/venv/bin/activate", "RUNSCRIPTS": str(runscripts)}
    env = {**module, **activation, "PATH": "/usr/bin:/bin", "VIRTUAL_ENV": f"{tmp_path}/v"}
    for switch, expected in (("1", "v/bin/python {0}/v"), ("0", "PyTorch/venv/bin/python {0}/PyTorch/venv")):
        command = [f"{runscripts}/conda-python-simple"]
        done = subprocess.run(
            command, env={**env, "PYTORCH_LAUNCH_ACTIVE": switch}, stdout=subprocess.PIPE, text=True, check=True
        )
        assert done.stdout == f"{tmp_path}/{expected.format(tmp_path)}\n"

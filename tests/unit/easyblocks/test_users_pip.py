"""pip and uv in environments that see a module's torch, with an index of wheels that have metadata alone."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pip as pip_package
import pytest
from distributions import write_wheel
from repository import TREE

pytestmark = [pytest.mark.early, pytest.mark.slow]

PROGRAMS = TREE / "easyblocks/pytorch_install/programs"
INDEX = "https://example.org/whl/cpu"

#: Packages of the index: name -> version -> what it requires. It has the module's torch too.
RELEASES = {
    "accelerate": {"0.0.1": [], "1.15.0": ["torch>=2.0"]},
    "timm": {"1.0": ["torch", "torchvision"]},
    "newer": {"2.0": ["torch>=2.14"]},
    "later": {"1.0": ["torch"], "2.0": ["torch>=2.14"]},
    "mine": {"1.0": ["accelerate"]},
    "torch": {"2.12.0": [], "2.13.0+cpu": ["on-no-index"], "2.15.0": []},
    "torchvision": {"0.28.0": ["torch==2.13.0"], "0.29.2": ["torch>=2.14"]},
    "other": {"1.0": [], "2.0": []},
}

BACKEND = """import os, zipfile
import torch
def build_wheel(directory, settings=None, metadata=None):
    with zipfile.ZipFile(os.path.join(directory, "built-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("built.py", "TORCH = %r" % torch.__file__)
        wheel.writestr("built-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n")
        wheel.writestr("built-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("built-1.0.dist-info/RECORD", "")
    return "built-1.0-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = [%s]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def thorough(line):
    """A command line for ./run-tests --thorough."""
    return pytest.param(line, marks=pytest.mark.thorough)


def make_environment(directory, line="", options=()):
    """Make a virtual environment whose Python runs a line at its start; return its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", *options, directory], check=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "module.pth").write_text(line)
    (packages / "pip").symlink_to(Path(pip_package.__file__).parent)
    return packages


@pytest.fixture(scope="module")
def installation(tmp_path_factory):
    """An installed module: its torch, and what keeps it; beside it the index."""
    root = tmp_path_factory.mktemp("site") / "PyTorch"
    packages = root / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch/__init__.py").touch()
    (packages / "torch-2.13.0+cpu.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"
    (packages / "torch-2.13.0+cpu.dist-info/METADATA").write_text(metadata)
    (packages / "torch-2.13.0+cpu.dist-info/RECORD").touch()
    subprocess.run(
        [sys.executable, "-s", "-S", PROGRAMS / "hold_packages.py", root, INDEX],
        env={"PYTHONPATH": str(packages)},
        check=True,
    )
    shutil.copy(PROGRAMS / "users_pip.py", root / "held")
    (root / "runscripts").symlink_to(TREE / "runscripts")
    (packages / "pip").symlink_to(Path(pip_package.__file__).parent)
    (root.parent / "index").mkdir()
    for name, versions in RELEASES.items():
        for version, requirements in versions.items():
            write_wheel(root.parent / "index", name, version, requirements=requirements)
    return root


class Environment:
    """An environment and the commands that install into it."""

    def __init__(self, directory, installation):
        self.directory = directory
        self.installation = installation
        index = str(installation.parent / "index")
        self.env = {name: value for name, value in os.environ.items() if not re.match("(PIP|UV)_", name)}
        self.env.update(PIP_CONFIG_FILE=os.devnull, PIP_NO_INDEX="1", PIP_FIND_LINKS=index, PIP_NO_CACHE_DIR="1")
        self.env.update(UV_NO_CONFIG="1", UV_NO_INDEX="1", UV_FIND_LINKS=index, UV_OFFLINE="1")
        self.env.update(
            UV_CACHE_DIR=str(installation.parent / "cache"),
            PYTHONUSERBASE=str(directory.parent / "base"),
            VIRTUAL_ENV=str(directory),
            CONTAINERROOT=str(installation),
        )

    def run(self, *command, status=0, **variables):
        """Run a command in the parent directory, which must end with this status; return what it printed."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**self.env, **variables}
        result = subprocess.run(command, cwd=self.directory.parent, env=environment, check=False, **pipes)
        assert result.returncode == status, result.stdout
        return result.stdout

    def pip(self, *arguments, **variables):
        """Run `python -m pip`."""
        return self.run(self.directory / "bin/python", "-m", "pip", *arguments, **variables)

    def uv(self, *arguments, **variables):
        """Run the module's `uv`."""
        return self.run(TREE / "runscripts/uv", *arguments, **variables)

    def run_line(self, line, *arguments, **variables):
        """Run a line that begins with `pip` or `uv pip`, and more arguments."""
        program, *words = line.split()
        run = self.uv if program == "uv" else self.pip
        return run(*words, *arguments, **variables)

    def versions(self):
        """Version by name of what is installed in the environment itself."""
        found = self.directory.glob("lib/python*/site-packages/*.dist-info")
        return dict(path.name[: -len(".dist-info")].split("-") for path in found)

    def imports_modules_torch(self):
        """Return whether it imports the torch of the installation."""
        found = self.run(self.directory / "bin/python", "-c", "import torch; print(torch.__file__)")
        return found == f"{self.installation}/packages/torch/__init__.py\n"


@pytest.fixture
def environment(installation, tmp_path):
    """An environment that sees the module's torch."""
    make_environment(tmp_path / "v", f"import site; site.addsitedir({str(installation / 'packages')!r})\n")
    return Environment(tmp_path / "v", installation)


@pytest.fixture
def with_uv(environment):
    """The environment, with uv."""
    if not shutil.which("uv"):
        pytest.skip("no uv: ./run-tests installs it")
    return environment


@pytest.mark.parametrize(
    "line",
    [
        "pip install",
        "pip install --force-reinstall",
        "uv pip install --reinstall",
        thorough("pip install --ignore-installed"),
        thorough("pip install --upgrade"),
    ],
)
def test_the_latest_release_that_fits_the_modules_torch_is_installed(with_uv, line):
    with_uv.run_line(line, "mine")
    found = with_uv.versions()
    assert (found["accelerate"], found["mine"], found.get("torch")) in [
        ("1.15.0", "1.0", None),
        ("1.15.0", "1.0", "2.13.0+cpu"),  # the wheel without modules
    ]
    assert with_uv.imports_modules_torch()


@pytest.mark.parametrize(
    "line",
    [
        "pip install --target",
        "uv pip install --target",
        "pip wheel -w",
        thorough("pip download -d"),
        thorough("pip install --prefix"),
        thorough("uv pip install --prefix"),
    ],
)
def test_into_a_directory_goes_the_latest_release_and_no_torch_of_an_index_with_the_same_version(
    with_uv, tmp_path, line
):
    with_uv.run_line(line, "to", "accelerate")
    found = [path for path in (tmp_path / "to").rglob("*") if path.suffix in (".whl", ".dist-info")]
    names = {"-".join(path.name.replace(".dist-info", "").split("-")[:2]) for path in found}
    assert "accelerate-1.15.0" in names
    assert names <= {"accelerate-1.15.0", "torch-2.13.0+cpu"}  # for pip's --prefix, the module's torch is installed
    # that of the index requires what no index has, and has another name
    assert "torch-2.13.0+cpu-py3-none-any.whl" not in [path.name for path in found]


@pytest.mark.parametrize(
    "line",
    [
        "pip install torch==2.12.0",
        "pip install newer",
        "pip install timm",
        "pip install torchvision>=0.29",
        "pip install -c own.txt torch",
        "uv pip install timm",
    ],
)
def test_what_does_not_fit_the_modules_torch_fails_and_changes_nothing(with_uv, tmp_path, line):
    (tmp_path / "own.txt").write_text("torch==2.12.0\n")
    with_uv.run_line(line, "other", status=1)
    assert with_uv.versions() == {}
    assert with_uv.imports_modules_torch()


@pytest.mark.parametrize("start", ["-mpip", "-Im pip", "-X utf8 -W ignore -s -B -u -m pip"])
def test_pip_is_recognized_however_it_is_started(environment, start):
    python = environment.directory / "bin/python"
    environment.run(python, *start.split(), "install", "torch==2.12.0", status=1)
    code = "import sys; print(*sys.argv)"
    assert environment.run(python, "-c", code, "pip", "install", "torch") == "-c pip install torch\n"


def test_for_another_environment_pip_does_as_there(environment, tmp_path):
    plain = tmp_path / "plain"
    make_environment(plain)
    environment.pip("--python", plain, "install", "newer")
    assert Environment(plain, environment.installation).versions() == {"newer": "2.0", "torch": "2.15.0"}


@pytest.mark.parametrize(
    ("name", "file"),
    [("PIP_CONSTRAINT", "own.txt"), pytest.param("PIP_CONFIG_FILE", "pip.conf", marks=pytest.mark.thorough)],
)
def test_constraints_of_users_and_of_the_module_both_act(environment, tmp_path, name, file):
    (tmp_path / "own.txt").write_text("other==1.0\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path}/own.txt\n")
    variables = {name: file}
    environment.pip("install", "other", "accelerate", **variables)
    assert environment.versions() == {"other": "1.0", "accelerate": "1.15.0"}
    environment.pip("install", "torch==2.15.0", **variables, status=1)


@pytest.mark.parametrize("line", ["pip install .", "uv pip install ."])
def test_a_build_that_requires_torch_gets_the_modules(with_uv, tmp_path, line):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(PROJECT % '"torch"')
    with_uv.run_line(line)
    (built,) = (tmp_path / "v").glob("lib/python*/site-packages/built.py")
    assert built.read_text() == f"TORCH = {str(with_uv.installation / 'packages/torch/__init__.py')!r}"


def test_users_environment_on_an_image_keeps_torch_though_its_line_runs_before_the_images_packages_are_seen(
    installation, tmp_path
):
    """The image's Python has torch and pip in its own site-packages."""
    packages = make_environment(tmp_path / "image")
    for name in ("torch", "torch-2.13.0+cpu.dist-info"):
        shutil.copytree(installation / "packages" / name, packages / name)
    (packages / "pip").unlink()
    shutil.copytree(Path(pip_package.__file__).parent, packages / "pip")
    held = tmp_path / "module/held"
    shutil.copytree(installation / "held", held)
    shutil.copy(installation / "constraints.txt", tmp_path / "module")
    (held / "packages").write_text(str(packages))
    line = (installation / "packages/zz_users_pip.pth").read_text().replace(str(installation), str(tmp_path / "module"))
    sites = f"import site; site.getsitepackages = lambda _: [{str(packages)!r}]\n"
    (
        make_environment(tmp_path / "v", f"{sites}{line}import sys; sys.path.append({str(packages)!r})\n") / "pip"
    ).unlink()
    environment = Environment(tmp_path / "v", installation)
    assert "Error processing line" not in environment.pip("install", "accelerate")
    environment.pip("install", "torch==2.15.0", status=1)
    assert environment.versions() == {"accelerate": "1.15.0"}


def test_where_the_module_is_installed_nothing_replaces_its_torch(installation, tmp_path):
    """As the owner of a venv module does, whose Python is no virtual environment."""
    line = f"import sys; sys.base_prefix = sys.prefix; sys.path.append({str(installation / 'packages')!r})\n"
    make_environment(tmp_path / "v", f"{line}{(installation / 'packages/zz_users_pip.pth').read_text()}")
    environment = Environment(tmp_path / "v", installation)
    for options in ([], ["--force-reinstall"]):
        environment.pip("install", *options, "mine")
        assert environment.imports_modules_torch()
        assert "torch" not in environment.versions()


def test_the_users_own_packages_are_upgraded_and_removed_and_others_stay(installation, tmp_path):
    line = f"import site; site.addsitedir({str(installation / 'packages')!r})\n"
    make_environment(tmp_path / "v", line, ["--system-site-packages"])
    environment = Environment(tmp_path / "v", installation)
    for version in ("1.0", "2.0"):
        files = {"extra.py": "def main():\n    print('here')\n"}
        wheel = write_wheel(tmp_path, "extra", version, files, commands="extra-command = extra:main")
        environment.pip("install", "--user", wheel)
    records = [path.name for path in (tmp_path / "base").rglob("*.dist-info")]
    assert records == ["extra-2.0.dist-info"]
    # an environment gets another release beside the user's, which other environments and jobs import
    environment.pip("install", tmp_path / "extra-1.0-py3-none-any.whl")
    assert (environment.versions()["extra"], (tmp_path / "base/bin/extra-command").exists()) == ("1.0", True)
    environment.pip("uninstall", "--yes", "extra")
    assert environment.run(tmp_path / "base/bin/extra-command") == "here\n"
    assert "Successfully uninstalled extra-2.0" in environment.pip("uninstall", "--yes", "extra")
    assert [path for path in (tmp_path / "base").rglob("*") if path.is_file()] == []

    # one that is neither the environment's nor the user's
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    assert "outside environment" in environment.pip("uninstall", "--yes", "extra", PYTHONPATH=str(tmp_path / "site"))
    assert (tmp_path / "site/extra.py").exists()


def test_a_package_of_an_environment_that_is_read_only_is_not_removed_and_pip_reports_it(environment, tmp_path):
    """As in packed user-software; root may write everywhere."""
    environment.pip("install", "other")
    (packages,) = (tmp_path / "v").glob("lib/python*/site-packages")
    line = "import os; os.access = lambda path, mode, **_: False\n"
    (packages / "aa_read_only.pth").write_text(line)
    output = environment.pip("uninstall", "--yes", "other", status=1)
    assert f"cannot remove {packages}/other" in output and "run unmake-squashfs on the host first" in output
    assert "Traceback" not in output and environment.versions() == {"other": "2.0"}


@pytest.mark.parametrize("name", ["plain", "v"])
def test_uv_takes_an_environment_by_its_option_before_the_active_one(with_uv, tmp_path, name):
    make_environment(tmp_path / "plain")
    place = str(tmp_path / name / "bin/python")
    torch = {"plain": "+ torch==2.15.0", "v": "+ torch==2.13.0+cpu"}[name]
    for option in (["--python", name], [f"--python={place}"], ["-p", place], [f"-p{place}"]):
        assert torch in with_uv.uv("pip", "install", "--dry-run", *option, "accelerate")


@pytest.mark.parametrize("command", [["sync", "--active"], ["pip", "sync", "x"], ["run", "--active", "x"]])
def test_uv_does_not_empty_environments_of_the_module(with_uv, installation, tmp_path, command):
    (tmp_path / "v/lib").rename(tmp_path / "lib")
    (tmp_path / "v/lib").symlink_to(tmp_path / "lib")
    (packages,) = (tmp_path / "lib").glob("python*/site-packages")
    (packages / "torch").symlink_to(installation / "packages/torch")
    (installation / "held/packages").write_text(str(packages))
    try:
        output = with_uv.uv(*command, status=1)
    finally:
        (installation / "held/packages").write_text(f"{installation}/packages")
    assert output.startswith("uv: would remove the module's packages")

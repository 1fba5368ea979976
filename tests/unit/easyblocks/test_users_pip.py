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

TREE = Path(__file__).resolve().parents[3]
PROGRAMS = TREE / "easyblocks/pytorch_install/programs"
INDEX = "https://example.org/whl/cpu"
ADVICE = "The PyTorch module keeps its torch 2.13.0+cpu"

#: Packages of the index: an old release without torch, and what later ones require.
RELEASES = {
    "accelerate": {"0.0.1": [], "1.15.0": ["torch>=2.0"]},
    "timm": {"0.1": [], "1.0": ["torch", "torchvision"]},
    "newer": {"1.0": [], "2.0": ["torch>=2.14"]},
    "later": {"1.0": ["torch"], "2.0": ["torch>=2.14"]},
    "mine": {"1.0": ["accelerate"]},
    "torch": {"2.12.0": [], "2.13.0": [], "2.15.0": []},
    "torchvision": {"0.1": [], "0.28.0": ["torch==2.13.0"], "0.29.2": ["torch>=2.14"]},
    "other": {"1.0": [], "2.0": []},
    "broken": {"1.0": [], "2.0": ["torch", "on-no-index"]},
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
NO_TORCH = """def get_requires_for_build_wheel(settings=None):
    raise ModuleNotFoundError("No module named 'torch'")
"""
PROJECT = '[build-system]\nrequires = [%s]\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def thorough(*values):
    """A parameter of ./run-tests --thorough."""
    return pytest.param(values, marks=pytest.mark.thorough)


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
    # what it requires may be hidden in an environment, and on no index
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\nRequires-Dist: setuptools>=77\n"
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
        self.directory, self.installation = directory, installation
        index = str(installation.parent / "index")
        self.env = {
            **{name: value for name, value in os.environ.items() if not re.match("(PIP|UV)_", name)},
            **{"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "PIP_NO_CACHE_DIR": "1"},
            **{"UV_NO_CONFIG": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": index, "UV_OFFLINE": "1"},
            "UV_CACHE_DIR": str(installation.parent / "cache"),
            "PYTHONUSERBASE": str(directory.parent / "base"),
            "VIRTUAL_ENV": str(directory),
            "CONTAINERROOT": str(installation),
        }

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


@pytest.mark.parametrize("options", [(), ("--force-reinstall",), thorough("--ignore-installed"), thorough("--upgrade")])
def test_pip_installs_the_latest_release_that_fits_the_modules_torch(environment, options):
    environment.pip("install", *options, "mine")
    assert environment.versions() == {"accelerate": "1.15.0", "mine": "1.0"}
    assert environment.imports_modules_torch()


@pytest.mark.parametrize(
    "command", [("install", "--target"), ("wheel", "-w"), thorough("download", "-d"), thorough("install", "--prefix")]
)
def test_into_a_directory_goes_the_latest_release_and_no_torch(environment, tmp_path, command):
    environment.pip(*command, "to", "accelerate")
    names = {path.name for path in (tmp_path / "to").rglob("*") if path.suffix in (".whl", ".dist-info")}
    assert {name.partition("-py3")[0].replace(".dist-info", "") for name in names} == {"accelerate-1.15.0"}


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (["torch==2.12.0"], ADVICE),
        (["--force-reinstall", "torch"], f"torch 2.13.0+cpu is not installed again. {ADVICE}"),
        (["-c", "own.txt", "torch"], ADVICE),
        (["newer"], f"newer 2.0 requires torch>=2.14. {ADVICE}"),
        (["broken"], "broken 2.0 requires torch. Not installing 1.0, which does not"),
        (["-q", "timm"], f"Take 0.28.0+cpu from PyTorch's index: add --extra-index-url {INDEX}"),
        (["--only-binary", ":all:", "timm"], f"add --extra-index-url {INDEX}"),
        (["torchvision>=0.29"], ADVICE),
    ],
)
def test_what_does_not_fit_the_modules_torch_fails_with_what_to_do_and_changes_nothing(
    environment, tmp_path, packages, message
):
    (tmp_path / "own.txt").write_text("torch==2.12.0\n")
    output = environment.pip("install", *packages, "other", status=1)
    assert (output.count(message), environment.versions()) == (1, {}), output
    assert environment.imports_modules_torch()


@pytest.mark.parametrize("start", ["-mpip", "-Im pip", "-X utf8 -W ignore -s -B -u -m pip"])
def test_pip_is_recognized_however_it_is_started(environment, start):
    python = environment.directory / "bin/python"
    assert ADVICE in environment.run(python, *start.split(), "install", "torch==2.12.0", status=1)
    code = "import sys; print(*sys.argv)"
    assert environment.run(python, "-c", code, "pip", "install", "torch") == "-c pip install torch\n"


def test_for_another_environment_pip_does_as_there(environment, tmp_path):
    plain = tmp_path / "plain"
    make_environment(plain)
    environment.pip("--python", plain, "install", "newer")
    assert Environment(plain, environment.installation).versions() == {"newer": "2.0", "torch": "2.15.0"}


@pytest.mark.parametrize("arguments", [["install", "no-such-package"], thorough("install", "./none")])
def test_other_failures_of_pip_are_as_they_are(environment, arguments):
    assert "module" not in environment.pip(*arguments, status=1).replace("No module", "")


@pytest.mark.parametrize("container", ["", "image.sif"])
def test_in_an_image_a_path_that_is_not_there_comes_with_what_to_do(environment, tmp_path, container):
    inside = {"SINGULARITY_CONTAINER": container} if container else {}
    hint = "is not in the image. Check the path, or bind its directory with APPTAINER_BIND"
    for arguments in (["-q", tmp_path / "package"], ["-r", tmp_path / "requirements.txt"]):
        output = environment.pip("install", *arguments, status=1, **inside)
        assert (f"pip: {arguments[-1]} {hint}" in output) == bool(container), output
    assert hint not in environment.pip("install", "--target", tmp_path / "new", "other", **inside)


def test_an_older_release_that_fits_is_installed_with_a_warning(environment):
    warning = f"WARNING: later 2.0 requires torch>=2.14: installing 1.0. {ADVICE}"
    assert warning in environment.pip("install", "later")
    assert environment.versions() == {"later": "1.0"}


@pytest.mark.parametrize("source", ["variable", pytest.param("configuration", marks=pytest.mark.thorough)])
def test_constraints_of_users_and_of_the_module_both_act(environment, tmp_path, source):
    (tmp_path / "own.txt").write_text("other==1.0\n")
    (tmp_path / "pip.conf").write_text(f"[global]\nconstraint = {tmp_path}/own.txt\n")
    variables = {"variable": {"PIP_CONSTRAINT": "own.txt"}, "configuration": {"PIP_CONFIG_FILE": "pip.conf"}}[source]
    environment.pip("install", "other", "accelerate", **variables)
    assert environment.versions() == {"other": "1.0", "accelerate": "1.15.0"}
    environment.pip("install", "torch==2.15.0", **variables, status=1)


@pytest.mark.parametrize("program", ["pip", "uv"])
def test_a_build_that_requires_torch_gets_the_modules(with_uv, tmp_path, program):
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(PROJECT % '"torch"')
    if program == "pip":
        with_uv.pip("install", ".")
    else:
        with_uv.uv("pip", "install", ".")
    (built,) = (tmp_path / "v").glob("lib/python*/site-packages/built.py")
    assert built.read_text() == f"TORCH = {str(with_uv.installation / 'packages/torch/__init__.py')!r}"


@pytest.mark.parametrize("requirement", ['"torch>=2.14"', ""])
def test_a_build_that_does_not_get_it_names_the_option_for_it(environment, tmp_path, requirement):
    (tmp_path / "backend.py").write_text(NO_TORCH)
    (tmp_path / "pyproject.toml").write_text(PROJECT % requirement)
    assert "pip install --no-build-isolation" in environment.pip("install", ".", status=1)


def test_the_torch_is_not_removed_and_another_pip_of_the_environment_keeps_it_too(environment, tmp_path):
    assert "torch belongs to the PyTorch module" in environment.pip("uninstall", "--yes", "torch", status=1)
    assert environment.imports_modules_torch()

    (packages,) = (tmp_path / "v").glob("lib/python*/site-packages")
    (packages / "pip").unlink()
    shutil.copytree(Path(pip_package.__file__).parent, packages / "pip")  # as an upgrade does
    script = tmp_path / "v/bin/pip3"
    script.write_text(
        f"#!{tmp_path}/v/bin/python\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    environment.run(script, "install", "accelerate")
    environment.run(script, "install", "torch==2.15.0", status=1)
    assert environment.versions() == {"accelerate": "1.15.0"}
    (packages / "pip-99.dist-info").mkdir()
    (packages / "pip-99.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 99\n")
    (packages / "pip-99.dist-info/RECORD").write_text("pip/__init__.py,,\n../../../bin/pip3,,\n")
    assert "pip belongs to" in environment.run(script, "uninstall", "--yes", "pip", status=1)
    assert script.exists()


def test_the_users_own_packages_are_upgraded_and_removed_and_others_stay(installation, tmp_path):
    line = f"import site; site.addsitedir({str(installation / 'packages')!r})\n"
    make_environment(tmp_path / "v", line, ["--system-site-packages"])
    environment = Environment(tmp_path / "v", installation)
    for version in ("1.0", "2.0"):
        files, commands = {"extra.py": "def main():\n    print('here')\n"}, "extra-command = extra:main"
        wheel = write_wheel(tmp_path, "extra", version, files, commands=commands)
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


def test_uv_installs_the_latest_release_that_fits_the_modules_torch_and_fails_on_what_does_not(with_uv):
    assert f"--extra-index-url {INDEX}" in with_uv.uv("pip", "install", "timm", status=1)
    assert with_uv.versions() == {}
    with_uv.uv("pip", "install", "--reinstall", "mine")
    assert with_uv.versions()["accelerate"] == "1.15.0"
    assert with_uv.imports_modules_torch()


def test_the_uv_of_an_environment_keeps_the_modules_torch_as_pip_names_it(with_uv, tmp_path):
    code = "from shutil import which\nfind_uv_bin = lambda: which('uv')\n"
    wheel = write_wheel(tmp_path, "uv", "1.0", {"uv.py": code}, commands="uv = uv:main")
    first = f"{with_uv.directory}/bin:{os.environ['PATH']}"
    assert "does not keep the module's torch. Use `python -m uv`" in with_uv.pip("install", wheel, PATH=first)
    (with_uv.directory / "bin/uv").unlink()
    command = [with_uv.directory / "bin/python", "-m", "uv", "pip", "install", "timm"]
    assert f"--extra-index-url {INDEX}" in with_uv.run(*command, status=1)


def test_uv_takes_an_environment_by_its_option_before_the_active_one(with_uv, tmp_path):
    make_environment(tmp_path / "plain")
    for option in (["--python", "plain"], ["--python=plain"], ["-p", "plain"]):
        assert "+ torch==2.15.0" in with_uv.uv("pip", "install", "--dry-run", *option, "accelerate")


@pytest.mark.parametrize("command", [["sync", "--active"], ["pip", "sync", "x"], ["run", "--active", "x"]])
def test_uv_does_not_empty_environments_of_the_module(with_uv, installation, tmp_path, command):
    (tmp_path / "v/lib").rename(tmp_path / "lib")
    (tmp_path / "v/lib").symlink_to(tmp_path / "lib")
    (packages,) = (tmp_path / "lib").glob("python*/site-packages")
    (packages / "torch").symlink_to(installation / "packages/torch")
    (installation / "held/packages").write_text(f"{packages}\n")
    try:
        output = with_uv.uv(*command, status=1)
    finally:
        (installation / "held/packages").write_text(f"{installation}/packages\n")
    assert output.startswith("uv: would remove the module's packages")


def test_without_another_uv_the_command_says_so(environment):
    output = environment.uv("--version", PATH="/usr/bin:/bin", HOME="/nonexistent", status=1)
    assert output.startswith("uv: uv not found on PATH or in ~/.local/bin. Install it: pip install --user uv, or")

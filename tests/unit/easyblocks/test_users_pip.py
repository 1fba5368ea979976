"""The command `pip` of an environment: what `pip install --user` installed can be upgraded and removed."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pip as pip_package
import pytest

pytestmark = pytest.mark.parametrize("prefix", ["Lua"], indirect=True)  # nothing here is about the module's syntax


def wheel(directory, version):
    """A package with a command, as a wheel file."""
    path = directory / f"extra_package-{version}-py3-none-any.whl"
    info = f"extra_package-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("extra_package.py", "def main():\n    print('here')\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: extra-package\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nextra-command = extra_package:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def pip(prefix, tmp_path):
    """A function that runs pip of an environment with a directory `base` for the user's own packages."""
    from pytorch_install.users.pip_command import write_pip

    bin_directory = tmp_path / "venv" / "bin"
    command = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", tmp_path / "venv"]
    subprocess.run(command, check=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(str(Path(pip_package.__file__).parents[1]))
    for name in ("pip", "pip3"):
        (bin_directory / name).touch()
    write_pip(str(bin_directory), str(bin_directory / "python"))
    env = {**os.environ, "PYTHONUSERBASE": str(tmp_path / "base"), "PIP_NO_INDEX": "1"}

    def run(*arguments, name="pip", **variables):
        command = [bin_directory / name, *arguments]
        result = subprocess.run(command, env={**env, **variables}, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_the_users_own_packages_are_upgraded_and_removed_and_others_stay(pip, tmp_path):
    for version, name in [("1.0", "pip"), ("2.0", "pip3")]:
        pip("install", "--user", wheel(tmp_path, version), name=name)
    records = [path.name for path in (tmp_path / "base").rglob("*.dist-info")]
    assert records == ["extra_package-2.0.dist-info"]
    assert (
        subprocess.check_output(
            [tmp_path / "base/bin/extra-command"], text=True, env={"PYTHONUSERBASE": str(tmp_path / "base")}
        )
        == "here\n"
    )
    assert "Successfully uninstalled extra-package-2.0" in pip("uninstall", "--yes", "extra-package")
    assert [path for path in (tmp_path / "base").rglob("*") if path.is_file()] == []

    # one that is neither the environment's nor the user's
    pip("install", "--quiet", "--target", str(tmp_path / "site"), wheel(tmp_path, "1.0"))
    assert "outside environment" in pip("uninstall", "--yes", "extra-package", PYTHONPATH=str(tmp_path / "site"))
    assert (tmp_path / "site" / "extra_package.py").exists()


def test_a_python_path_that_is_too_long_for_a_first_line_keeps_pips_own_script(prefix, tmp_path):
    from pytorch_install.users.pip_command import write_pip

    (tmp_path / "pip").write_text("pip's own")
    for python in (f"/{'long/' * 30}bin/python", "/with blank/bin/python"):
        write_pip(str(tmp_path), python)
    assert (tmp_path / "pip").read_text() == "pip's own"

"""list-packages in the virtual environment that runs the tests, which stands for a module's."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "runscripts" / "pytorch_packages.py"


def list_packages(*arguments, **variables):
    """Run the command; return the completed process."""
    options = {"env": {**os.environ, **variables}, "capture_output": True, "text": True, "check": False}
    return subprocess.run([sys.executable, SCRIPT, *arguments], **options)


def table(result):
    """The lines of the list: name -> (version, origin)."""
    assert result.returncode == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["Package", "Version", "From"]
    return {name: (version, origin) for name, version, origin in rows[1:]}


def test_every_package_is_listed_with_its_version_and_where_it_is_from():
    installed = {package.metadata["Name"] for package in importlib.metadata.distributions()}
    found = table(list_packages())
    assert set(found) == installed
    assert found["pytest"] == (importlib.metadata.version("pytest"), "module")
    assert table(list_packages(APPTAINER_CONTAINER="/image.sif"))["pytest"][1] == "image"


def test_only_the_one_that_is_imported_is_listed_where_there_are_two(tmp_path):
    """Dots, dashes and underscores in a name are the same."""
    for place, name in [("one", "PyTest"), ("one", "Some.Package"), ("two", "some__package")]:
        info = tmp_path / place / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for safe in ("", "1"):
        found = table(list_packages(PYTHONPATH=f"{tmp_path}/one:{tmp_path}/two", PYTHONSAFEPATH=safe))
        assert found["PyTest"] == found["Some.Package"] == ("1.0", "PYTHONPATH")
        assert not {"pytest", "some__package"} & set(found)


def test_what_a_killed_pip_left_is_named_and_skipped(tmp_path):
    info = tmp_path / "half-1.0.dist-info"
    info.mkdir()
    expected = table(list_packages())
    result = list_packages(PYTHONPATH=str(tmp_path))
    assert table(result) == expected
    assert result.stderr == f"list-packages: skipped {info}: its metadata has no name\n"
    (info / "METADATA").write_text("Metadata-Version: 2.1\n")
    assert list_packages(PYTHONPATH=str(tmp_path)).stderr == result.stderr


def test_nothing_is_the_users_where_nothing_was_installed_on_top():
    result = list_packages("--user")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    result = list_packages("--users")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "list-packages: unknown arguments --users: use --user or --help\n"


def test_packages_of_an_active_environment_are_the_users(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "mine"], check=True)
    python = tmp_path / "mine/bin/python"
    (info,) = (path / "own-1.0.dist-info" for path in tmp_path.glob("mine/lib/python3*/site-packages"))
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "mine"), "CONTAINERROOT": "/module"}
    listed = subprocess.check_output([python, SCRIPT], env=env, text=True)
    assert ["own", "1.0", "environment"] in [line.split() for line in listed.splitlines()]
    assert "own==1.0" in subprocess.check_output([python, SCRIPT, "--user"], env=env, text=True).splitlines()

"""The environment of a venv module: a Python of its own, and a base for environments of users."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from easybuild.tools.build_log import EasyBuildError
from easybuild.tools.options import set_up_configuration

pytestmark = pytest.mark.early

#: One that loads libpython, and one that does not, on the machines of CI; others have one of both.
PYTHONS = [sys._base_executable, "/usr/bin/python3"]

HEADERS = "import sysconfig, os; print(os.path.realpath(sysconfig.get_path('include')))"


@pytest.fixture(scope="module", params=PYTHONS)
def base(request, tmp_path_factory):
    """An environment with a torch of its own, made into a base."""
    if not Path(request.param).exists():
        pytest.skip(f"no {request.param}")
    directory = tmp_path_factory.mktemp("base")
    environment = dict(os.environ)
    options = [f"--prefix={directory}", f"--tmpdir={directory}", "--allow-use-as-root-and-accept-consequences"]
    set_up_configuration(args=options, silent=True, reconfigure=True)
    from pytorch_install.python_base import make_base
    from pytorch_install.runtime import install_site_files

    root = directory / "venv"
    subprocess.run([request.param, "-I", "-m", "venv", "--without-pip", root], check=True)
    (site_packages(root) / "torch").mkdir()
    (site_packages(root) / "torch" / "__init__.py").write_text("origin = 'module'\n")
    for name in ("python-argcomplete", "activate-global"):  # of a package
        (root / "bin" / name).touch()
    make_base(request.param, str(root))
    install_site_files(str(site_packages(root).parent))
    root.with_name("headers").write_text(run(request.param, "-I", "-c", HEADERS))
    yield root
    os.environ.clear()
    os.environ.update(environment)


def site_packages(root):
    return next((root / "lib").glob("python*/site-packages"))


def run(python, *arguments, **environ):
    command = [str(python), *arguments]
    variables = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_it_is_no_virtual_environment_and_has_none_of_the_hosts_packages(base):
    code = "import sys, os; print(sys.prefix == sys.base_prefix, *[path for path in sys.path if os.path.isdir(path)])"
    is_base, *path = run(base / "bin" / "python", "-s", "-c", code, PYTHONSAFEPATH="1").split()
    assert is_base == "True"
    assert all(entry.startswith(f"{base}/") for entry in path)
    commands = {path.name for path in (base / "bin").iterdir() if "python3" not in path.name}
    assert commands == {"activate", "activate-global", "python", "python-argcomplete"}


def test_an_update_of_the_hosts_python_reaches_interpreter_and_library_together_or_not_at_all(base):
    code = "import os; print('libpython' in open('/proc/self/maps').read(), os.path.realpath(os.__file__))"
    is_shared, library = run(base / "bin" / "python", "-I", "-c", code).split()
    assert library.startswith(f"{base}/") == (is_shared == "False")
    assert not (base / "bin" / (base / "bin" / "python").readlink()).is_symlink()


def test_extensions_compile_with_the_hosts_headers(base):
    assert run(base / "bin" / "python", "-I", "-c", HEADERS) == base.with_name("headers").read_text()


def test_an_environment_on_top_inherits_torch_and_may_have_another(base, tmp_path):
    own = tmp_path / "own"
    run(base / "bin" / "python3", "-m", "venv", "--without-pip", "--system-site-packages", str(own))
    code = "import sys, torch; print(sys.prefix, torch.origin)"
    assert run(own / "bin" / "python", "-c", code) == f"{own} module"
    (site_packages(own) / "torch.py").write_text("origin = 'own'\n")
    assert run(own / "bin" / "python", "-c", code) == f"{own} own"


@pytest.mark.parametrize("kind", ["a package", "a path file"])
def test_the_torch_of_a_users_site_directory_follows_the_modules(base, tmp_path, kind):
    python = base / "bin" / "python"
    environ = {"PYTHONUSERBASE": str(tmp_path / "user")}
    users = Path(run(python, "-c", "import site; print(site.getusersitepackages())", **environ))
    users.mkdir(parents=True)
    (users / "other.py").write_text("origin = 'user'\n")
    (site_packages(base) / "other.py").write_text("origin = 'module'\n")
    code = "import other, torch; print(other.origin, torch.origin)"
    assert run(python, "-c", code, **environ) == "user module"
    directory = users if kind == "a package" else tmp_path / "elsewhere"
    (directory / "torch").mkdir(parents=True)
    (directory / "torch" / "__init__.py").write_text("origin = 'user'\n")
    if kind == "a path file":
        (users / "editable.pth").write_text(f"{directory}\n")
    assert run(python, "-c", code, **environ) == "module module"
    own = tmp_path / "own"
    run(python, "-m", "venv", "--without-pip", "--system-site-packages", str(own))
    assert run(own / "bin" / "python", "-c", code, **environ) == "module module"


def test_sourcing_activate_changes_the_path_only_if_the_commands_are_not_on_it(base):
    activate = f"source {base}/bin/activate"
    script = f"{activate}; echo $PATH; {activate}; deactivate; echo ${{VIRTUAL_ENV-none}} $PATH"
    result = run("bash", "-euc", script, PATH="/usr/bin:/bin")
    path = f"{base}/bin:/usr/bin:/bin"
    assert result == f"{path}\nnone {path}"


def test_a_python_that_cannot_be_copied_is_refused(base, monkeypatch, tmp_path):
    from pytorch_install import python_base

    python = str(base / "bin" / "python")
    facts = python_base.facts
    host = dict(facts(python), modules=["_ssl_of_the_prefix"])
    monkeypatch.setattr(python_base, "facts", lambda command: host if command == "host" else facts(command))
    subprocess.run([python, "-I", "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    with pytest.raises(EasyBuildError, match="does not work as a copy in .*_ssl_of_the_prefix. Load a module of"):
        python_base.make_base("host", str(tmp_path / "venv"))

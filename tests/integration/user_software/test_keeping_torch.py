"""pip and uv where a module's torch is seen: the latest release that fits it, or an error; none from before torch."""

import re
import shutil

import pytest
from distributions import write_wheel

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: Of PyPI, whose old releases require no torch, or which require it in its build.
PACKAGES = ["accelerate", "transformers[torch]", "lightning", "torchmetrics", "peft", "deepspeed"]


@pytest.fixture
def index(work):
    """A directory of wheels with metadata alone: an old release that requires no torch, and later ones."""
    write_wheel(work, "accelerate", "0.0.1")
    write_wheel(work, "accelerate", "1.15.0", requirements=["torch>=2.0"])
    write_wheel(work, "torch", "2.15.0")
    return work


@pytest.fixture
def keeping(request, testbed, index):
    """A function that runs a script with a module, in the image if it has one, with the local index alone."""
    module = request.getfixturevalue(request.param)
    enter = "singularity exec $SIF " if request.param == "container" else ""
    code = f"""export HOME={index} PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS={index}
export UV_NO_CONFIG=1 UV_NO_INDEX=1
export UV_FIND_LINKS={index} UV_CACHE_DIR={index}/cache PIP_DISABLE_PIP_VERSION_CHECK=1
module load {module}; cd {index}
mkdir -p $PYTHONUSERBASE/bin; cp {shutil.which("uv") or "/bin/true"} $PYTHONUSERBASE/bin/uv
"""

    def run(script):
        return testbed.run_unchecked(f"{code}{enter}bash -c '{script}' 2>&1", cwd=index).stdout

    return run


@pytest.mark.parametrize("keeping", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_uv_projects_get_the_modules_torch_with_the_lines_of_the_page(keeping, index):
    if not shutil.which("uv"):
        pytest.skip("no uv: ./run-tests installs it")
    project = 'name = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["accelerate"]\n'
    tool = 'package = false\nconstraint-dependencies = ["torch==2.13.0+cpu"]\nfind-links = ["HELD"]\n'
    (index / "pyproject.toml").write_text(f"[project]\n{project}[tool.uv]\n{tool}")
    output = keeping(
        """sed -i s,HELD,$CONTAINERROOT/held, pyproject.toml; uv venv -q --system-site-packages; uv sync -q; echo $?
uv run -q python -c "import torch; print(torch.__version__)\""""
    )
    assert output.splitlines()[-2:] == ["0", "2.13.0+cpu"], output


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command", ["pip install", "uv pip install", "pip install --target D", "uv pip install --target D"]
)
@pytest.mark.parametrize("package", PACKAGES)
def test_packages_of_pypi_install_their_latest_release_and_import_the_modules_torch(
    testbed, venv, work, package, command
):
    if "uv" in command and not shutil.which("uv"):
        pytest.skip("no uv: ./run-tests installs it")
    name = package.partition("[")[0]
    result = testbed.run_unchecked(
        f"""export HOME={work} PIP_CONFIG_FILE=/dev/null UV_NO_CONFIG=1 UV_CACHE_DIR={work}/cache
unset PIP_FIND_LINKS UV_FIND_LINKS; module load {venv}; cd {work}; python -m venv --system-site-packages v
source v/bin/activate; {command} -q '{package}' 2>&1; echo status $?
PYTHONPATH=D python -c 'import torch, {name}; print(torch.__version__, {name}.__version__)'""",
        timeout=1800,
    )
    lines = result.stdout.splitlines()
    assert "status 0" in lines
    assert re.match(r"2\.13\.0\+cpu (1\.1|2\.|5\.|0\.2|0\.19|1\.9)", lines[-1]), result.stdout

"""Creates the testbed's virtual environments: of EasyBuild, and of the test tools."""

import os
import shutil
import subprocess
import sys

from testbed.layout import TestbedError
from testbed.progress import run, step
from testbed.recipes import LOCK

WRAPPER = "testbed/environments/eb"
EASYBUILD = "testbed/environments/requirements.txt"
TEST_TOOLS = "tests/requirements.txt"
RELEASE_TOOLS = "releases/requirements.txt"
WEBSITE_TOOLS = "website/requirements.txt"
#: A regular expression for parts of packages that hardly anything here imports; Python compiles those when it does.
NOT_IMPORTED = (
    "site-packages/(backrefs|fontTools|fsspec|functorch|lxml|networkx|pip|playwright|polars|pygments/lexers|pymdownx"
    "|setuptools|test|tornado|watchdog|easybuild/easyblocks|numpy/(distutils|f2py)"
    "|sympy/(categories|codegen|combinatorics|crypto|diffgeom|holonomic|liealgebras|parsing|physics|stats|vector)"
    "|torch/(_inductor|_vendor|ao/ns|ao/pruning|distributed/pipelining|testing|utils/hipify)|torchgen|.*/tests?)/"
)
#: The index of torch's own wheels for CPUs, as in the recipes.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def provide_easybuild(layout):
    """Install EasyBuild and put ``eb`` on the testbed's PATH."""
    provide(layout, layout.eb_venv, [EASYBUILD], title="installing EasyBuild")
    for package in layout.eb_venv.glob("lib/python*/site-packages/pkg_resources"):
        shutil.rmtree(package)  # `eb` would import it at each start, for facts that installations do not need
    new = layout.bin / f".eb.{os.getpid()}"
    shutil.copy(layout.repository / WRAPPER, new)
    new.replace(layout.bin / "eb")  # at once: another process may be starting it


def provide_test_tools(layout):
    """Create the environment of ``run-tests``, with torch for the unit tests."""
    provide(layout, layout.test_venv, [TEST_TOOLS, WEBSITE_TOOLS, LOCK], title="installing the test tools")


def provide_release_tools(layout):
    """Create the environment of ``new-release``."""
    provide(layout, layout.release_venv, [RELEASE_TOOLS], title="installing uv")


def provide_website_tools(layout):
    """Create the environment of ``website/build``."""
    provide(layout, layout.website_venv, [WEBSITE_TOOLS], title="installing MkDocs")


def provide(layout, venv, requirements, *, title):
    """Create `venv` from requirements files (relative to the repository), unless it is up to date."""
    files = [layout.repository / name for name in requirements]
    wanted = "".join(file.read_text() for file in files)
    stamp = venv / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    with step(title):
        shutil.rmtree(venv, ignore_errors=True)
        run([sys.executable, "-m", "venv", venv])
        for file in files:  # one call each: with hashes, pip needs them for every package of a call
            install(venv, file)
        compile_packages(venv)
        stamp.write_text(wanted)


def install(venv, file):
    """Install a requirements file as pip is configured; if that fails, use torch's index as well."""
    command = [venv / "bin" / "pip", "install", "-q", "--no-compile", "-r", file]
    try:
        run(command)
    except TestbedError:
        run([*command, "--extra-index-url", TORCH_INDEX], advice="Check that the package index is reachable.")


def compile_packages(venv):
    """Compile what is imported on all cores; pip would do it on one. Files for another Python than this one fail."""
    command = [venv / "bin" / "python", "-m", "compileall", "-qq", "-j", "0", "-x", NOT_IMPORTED, venv / "lib"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

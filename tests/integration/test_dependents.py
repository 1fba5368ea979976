"""Recipes that depend on ours: packages on top of the venv, and a tool that runs commands of the container."""

import hashlib
import tempfile
from pathlib import Path

import pytest
from distributions import sha256, write_sdist

from testbed.recipes import VERSION

pytestmark = pytest.mark.testbed

PURE = {
    "setup.py": "from setuptools import setup\n"
    "setup(name='pure', version='1.0', py_modules=['pure'], install_requires=['torch'])\n",
    "pure.py": "import torch\n\n\ndef twice(tensor):\n    return 2 * tensor\n",
}
COMPILED = {
    "setup.py": "from setuptools import setup\n"
    "from torch.utils.cpp_extension import BuildExtension, CppExtension\n"
    "extension = CppExtension('compiled', ['compiled.cpp'], extra_compile_args=['-O0'])\n"
    "setup(name='compiled', version='1.0', ext_modules=[extension], cmdclass={'build_ext': BuildExtension})\n",
    "compiled.cpp": "#include <torch/extension.h>\n"
    "at::Tensor twice(at::Tensor tensor) { return 2 * tensor; }\n"
    'PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("twice", &twice); }\n',
}
RECIPE = """easyblock = {easyblock!r}
name = {name!r}
version = '1.0'
local_torchver = {version!r}
versionsuffix = '-PyTorch-' + local_torchver
homepage = 'https://pytorch.org'
description = "Stands in for a package that needs PyTorch."
toolchain = SYSTEM
dependencies = [('PyTorch', local_torchver, {suffix!r})]
sanity_check_paths = {{'files': [], 'dirs': [{directory!r}]}}
moduleclass = 'ai'
"""
PACKAGES = "lib/python3.11/site-packages"


class Site:
    """A directory with recipes of others, their sources and what they install."""

    def __init__(self, testbed, directory):
        self.testbed = testbed
        self.directory = directory

    def install(self, easyblock, name, lines, suffix="-cpu-venv", directory=PACKAGES):
        """Install a recipe with further lines; return what loads its module."""
        recipe = self.directory / f"{name}-1.0-PyTorch-{VERSION}.eb"
        text = RECIPE.format(easyblock=easyblock, name=name, version=VERSION, suffix=suffix, directory=directory)
        recipe.write_text(text + lines)
        self.testbed.run(f"eb --robot --sourcepath={self.directory} --installpath={self.directory}/installed {recipe}")
        return f"module use {self.directory}/installed/modules/all\nmodule load {name}\n"


@pytest.fixture
def site(testbed):
    with tempfile.TemporaryDirectory(prefix="dependents-", dir=testbed.layout.root) as directory:
        yield Site(testbed, Path(directory))


def on_two_nodes(testbed, load, name):
    """Run a package on 2 ranks of 2 nodes; return the sorted lines."""
    code = f"import os, torch, {name}; print(os.environ['RANK'], {name}.twice(torch.ones(1)).item(), flush=True)"
    output = testbed.run(f'{load}srun -N2 -n2 conda-python-distributed -c "{code}"')
    return sorted(output.splitlines())


def test_a_bundle_of_packages_on_the_venv_module_runs_on_two_nodes(testbed, venv, site):
    checksum = sha256(write_sdist(site.directory, "pure", PURE))
    load = site.install("PythonBundle", "pure", f"exts_list = [('pure', '1.0', {{'checksums': ['{checksum}']}})]\n")
    assert on_two_nodes(testbed, load, "pure") == ["0 2.0", "1 2.0"]


@pytest.mark.thorough  # compiles against torch's headers for minutes
def test_a_compiled_package_on_the_venv_module_runs_on_two_nodes(testbed, venv, site):
    checksum = sha256(write_sdist(site.directory, "compiled", COMPILED))
    load = site.install("PythonPackage", "compiled", f"sources = [SOURCE_TAR_GZ]\nchecksums = ['{checksum}']\n")
    assert on_two_nodes(testbed, load, "compiled") == ["0 2.0", "1 2.0"]


@pytest.mark.thorough
def test_a_tool_that_runs_commands_of_the_container_depends_on_its_module(testbed, container, site):
    script = "#!/bin/bash\nexec python -c 'import torch; print(torch.__version__)'\n"
    (site.directory / "tool").write_text(script)
    checksum = hashlib.sha256(script.encode()).hexdigest()
    lines = f"sources = [{{'filename': 'tool', 'extract_cmd': 'cp %s .'}}]\nchecksums = ['{checksum}']\n"
    lines += "files_to_copy = [(['tool'], 'bin')]\n"
    lines += "postinstallcmds = ['chmod +x %(installdir)s/bin/tool']\n"
    load = site.install("MakeCp", "tool", lines + "skipsteps = ['build']\n", suffix="-cpu-singularity", directory="bin")
    assert testbed.run(f"{load}srun -N1 -n1 tool").startswith(VERSION)

"""Recipes that depend on ours: packages on top of the venv, and a tool that runs commands of the container."""

import pytest
from distributions import sha256, write_sdist
from easybuild_prefix import EasyBuildPrefix

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
LINES = """dependencies = [('PyTorch', '{version}', '{suffix}')]
sanity_check_paths = {{'files': [], 'dirs': ['{directory}']}}
"""
PACKAGES = "lib/python3.11/site-packages"


@pytest.fixture
def install(testbed, work):
    """A function that installs a recipe of others with further lines, and returns what loads its module."""

    def run(easyblock, name, lines, suffix="-cpu-venv", directory=PACKAGES):
        prefix = EasyBuildPrefix(testbed, work, name, suffix=f"-PyTorch-{VERSION}")
        prefix.write(easyblock, LINES.format(version=VERSION, suffix=suffix, directory=directory) + lines)
        testbed.run(prefix.command(f"--robot --sourcepath={work}"))
        return f"{prefix.load}\n"

    return run


#: Easyblock, name, files of the sdist, and lines of the recipe.
PACKAGES_ON_TOP = [
    ("PythonBundle", "pure", PURE, "exts_list = [('pure', '1.0', {{'checksums': ['{}']}})]\n"),
    pytest.param(
        "PythonPackage",
        "compiled",
        COMPILED,
        "sources = [SOURCE_TAR_GZ]\nchecksums = ['{}']\n",
        marks=pytest.mark.thorough,  # compiles against torch's headers for minutes
    ),
]


@pytest.mark.parametrize(("easyblock", "name", "files", "lines"), PACKAGES_ON_TOP, ids=("bundle", "compiled"))
def test_packages_on_the_venv_module_run_on_two_nodes(testbed, venv, install, work, easyblock, name, files, lines):
    load = install(easyblock, name, lines.format(sha256(write_sdist(work, name, files))))
    line = f"{{os.environ['RANK']}} {{{name}.twice(torch.ones(1)).item()}}"
    (work / "ranks.py").write_text(f'import os, torch, {name}\nos.write(1, f"{line}\\n".encode())\n')
    output = testbed.run(f"{load}srun -N2 -n2 conda-python-distributed ranks.py", cwd=work)
    assert sorted(output.splitlines()) == ["0 2.0", "1 2.0"]


@pytest.mark.thorough
def test_a_tool_that_runs_commands_of_the_container_depends_on_its_module(testbed, container, install, work):
    (work / "tool").write_text("#!/bin/bash\nexec python -c 'import torch; print(torch.__version__)'\n")
    checksum = sha256(work / "tool")
    lines = f"sources = [{{'filename': 'tool', 'extract_cmd': 'cp %s .'}}]\nchecksums = ['{checksum}']\n"
    lines += "files_to_copy = [(['tool'], 'bin')]\n"
    lines += "postinstallcmds = ['chmod +x %(installdir)s/bin/tool']\n"
    load = install("MakeCp", "tool", lines + "skipsteps = ['build']\n", suffix="-cpu-singularity", directory="bin")
    assert testbed.run(f"{load}srun -N1 -n1 tool").startswith(VERSION)

"""Packages that a recipe compiles: from the sdist to the module, patched, offline, with modules of the site."""

import json
import re
from pathlib import Path

import pytest
from distributions import GREETING, sha256, write_sdist
from easybuild_prefix import EasyBuildPrefix

from testbed.recipes import LOCK

pytestmark = [pytest.mark.testbed, pytest.mark.early]

LINES = """dependencies = [('compiler/12', EXTERNAL_MODULE)]
sources = ['greeting-1.0.tar.gz', 'greeting.txt']
patches = {patches}
checksums = {checksums}
source_packages = [('greeting', {{'GREETING': 'built with $COMPILER'}})]
sanity_check_commands = ['python -c "import greeting"']"""
SDIST = {
    "setup.py": """import os
from setuptools import Extension, setup
macros = [("GREETING", '"%s"' % os.environ["GREETING"])]
setup(name="greeting", version="1.0", ext_modules=[Extension("greeting", ["greeting.c"], define_macros=macros)])
""",
    "greeting.c": GREETING.replace("GREETING); }", "GREETING) }"),
}
PATCH = """The semicolon.
--- a/greeting.c
+++ b/greeting.c
@@ -1,3 +1,3 @@
 #include <Python.h>
-static PyObject *text(PyObject *self, PyObject *none) { return PyUnicode_FromString(GREETING) }
+static PyObject *text(PyObject *self, PyObject *none) { return PyUnicode_FromString(GREETING); }
 static PyMethodDef methods[] = {{"text", text, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
"""
#: pip without any configuration, and without access to an index.
OFFLINE = "env PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL=http://127.0.0.1:9 https_proxy=http://127.0.0.1:9"


def write_modulefile(directory, name, *statements):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#%Module", *statements, ""]))


class Site(EasyBuildPrefix):
    """A prefix with a recipe that compiles a package, and the modules of its host."""

    def __init__(self, testbed, directory):
        super().__init__(testbed, directory, suffix="-greeting")
        self.modulefiles = directory / "modulefiles"
        for version in ("12", "13"):
            write_modulefile(self.modulefiles, f"compiler/{version}", "conflict compiler", f"setenv COMPILER {version}")
        write_modulefile(self.modulefiles, "mpi/4.1", "setenv MPI 4.1")
        write_sdist(directory, "greeting", SDIST)
        (directory / "greeting.patch").write_text(PATCH)
        lock = LOCK.read_text()
        (directory / "greeting.txt").write_text(re.search(r"^setuptools==.*\n", lock, re.MULTILINE)[0])

    def write_recipe(self, *patches):
        names = ["greeting-1.0.tar.gz", "greeting.txt", *patches]
        checksums = [{name: sha256(self.directory / name)} for name in names]
        self.write("EB_PyTorchVenv", LINES.format(patches=list(patches), checksums=checksums))

    def shell(self, script):
        """Run a script with the modules of the host and the prefix; return the completed process."""
        places = f"module use {self.modulefiles}; module use {self.directory}/modules/all"
        return self.testbed.run_unchecked(f"{places}\n{script}", cwd=self.directory)

    def eb(self, *options, before="", env=""):
        return self.shell(f"{before}\n{env} {self.command(*options)}")


@pytest.fixture
def site(testbed, work):
    return Site(testbed, work)


def test_a_job_builds_a_package_with_the_modules_of_recipe_and_shell_and_the_module_requires_them(site):
    site.write_recipe()
    failed = site.eb()
    assert failed.returncode != 0
    output = re.search(r"pip --isolated wheel .*greeting(?s:.*)output .* ->  ([\w./-]+)", failed.stderr)
    assert re.search(r"greeting\.c:2:\d+: error: expected .;. before", Path(output[1]).read_text())
    assert not list(site.directory.glob("modules/all/*/*"))
    assert not list(site.directory.glob("software/PyTorch/*/*"))

    site.write_recipe("greeting.patch")
    fetched = site.eb("--fetch")
    assert fetched.returncode == 0, fetched.stderr
    options = f"--job --job-backend=Slurm --job-cores=2 --job-output-dir={site.directory}"
    submitted = site.eb(options, before="module load mpi", env=OFFLINE)
    assert submitted.returncode == 0, submitted.stderr
    number = re.search(r"List of submitted jobs \(1\): .*: (\d+)$", submitted.stdout, re.MULTILINE)[1]
    # this step starts after the end of the job
    site.shell(f"srun --quiet --dependency=afterany:{number} true")
    output = next(site.directory.glob(f"*-{number}.out")).read_text()
    assert "COMPLETED: Installation ended successfully" in output

    record = json.loads(next(site.directory.glob("software/PyTorch/*/provenance/build.json")).read_text())
    assert record["modules"] == {"required": ["mpi/4.1", "compiler/12"], "brought": []}
    assert record["python"]["version"].startswith("3.11.")

    greeting = 'conda-python-simple -c "import greeting; print(greeting.text())"'
    used = site.shell(f"{site.load} && {greeting} && echo $COMPILER $MPI $LOADEDMODULES")
    assert used.stdout.startswith("built with 12\n12 4.1 ")

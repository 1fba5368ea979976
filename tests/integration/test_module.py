"""The module's interface under Lmod: loading sets it, unloading restores the environment."""

import re

import pytest
from distributions import write_wheel

pytestmark = pytest.mark.testbed


def test_the_module_loads_with_nothing_but_easybuilds_modules_on_the_path(testbed, module):
    output = testbed.run(
        f"""module purge
module unuse "$MODULEPATH"
export MODULEPATH={testbed.layout.modules}
module load {module}
echo "$CONTAINERROOT"; ls "$RUNSCRIPTS" "$PAYLOAD"; echo "$SLURM_KILL_BAD_EXIT" """
    )
    assert module in output.splitlines()[0]
    assert "conda-python-distributed" in output
    assert "mnist_ddp.py" in output
    assert output.splitlines()[-1] == "1"


def test_the_users_own_binds_work_beside_the_modules(testbed, container, tmp_path):
    (tmp_path / "own").write_text("mine\n")
    for name in ("SINGULARITY_BIND", "APPTAINER_BIND"):
        result = testbed.run_unchecked(
            f"""export {name}={tmp_path}:/mnt
module load {container}
singularity exec $SIF sh -c 'cat /mnt/own && ls /runscripts /payload && ls -d {testbed.layout.easybuild}/software'"""
        )
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("mine\n")
        assert "conda-python-distributed" in result.stdout
        assert "WARNING" not in result.stderr


def test_packages_are_compiled_but_not_their_tests(testbed, module, enter):
    places = testbed.run(
        f"""module load {module}
{enter}python -B -c 'import numpy.tests, os, torch
for package in (torch, numpy.tests):
    print(os.path.exists(package.__cached__))' """
    )
    assert places.split() == ["True", "False"]


def wheel(directory):
    """Write a package with a command as a wheel; return its path."""
    files = {"extra_package.py": "print('extra', __file__)\n\n\ndef main():\n    print('command')\n"}
    return write_wheel(directory, "extra-package", "1.0", files, commands="extra-command = extra_package:main")


def test_pip_install_user_goes_to_a_directory_of_this_user_and_module_and_works(testbed, module, enter, tmp_path):
    output = testbed.run(
        f"""export HOME={tmp_path}
module load {module}
{enter}pip install --quiet --user --no-index {wheel(tmp_path)}
srun -n1 {enter}conda-python-distributed -c 'import extra_package'
cd /; {enter}extra-command
{enter}pip uninstall --yes extra-package; find $PYTHONUSERBASE -name "extra*"; {enter}extra-command || echo $?"""
    )
    imported, ran, command, *removed, status = output.splitlines()
    assert re.match(rf"extra {tmp_path}/.local/easybuild/{module}-[0-9a-f]{{8}}/lib/", imported)
    assert (ran, command) == (imported, "command")
    assert removed[-1].strip() == "Successfully uninstalled extra-package-1.0"
    assert int(status) in (127, 255)  # not found: of a shell, and of the image's runtime

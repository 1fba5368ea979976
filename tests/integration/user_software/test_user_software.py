"""Packages that users install on top of an image: their directory, their precedence, and rebuilds."""

import os
import re
import sys

import pytest
from user_installation import IMPORT, THERE, pip_install

pytestmark = [pytest.mark.testbed, pytest.mark.early]


def test_a_new_environment_is_a_few_files_and_its_python_is_the_first(installation):
    files = [path for path in installation.store.rglob("*") if not path.is_dir() or path.is_symlink()]
    assert len(files) < 20
    output = installation.run(
        """ls -d $CONTAINERROOT/user-software/venv
singularity exec $SIF bash -c 'command -v python pip; echo $VIRTUAL_ENV'
python -c 'import torch; print(torch.__file__)'; list-packages --user"""
    )
    assert output.splitlines() == [
        f"{installation.prefix}/software/PyTorch/2.13.0-mine/user-software/venv",
        "/user-software/venv/pytorch/bin/python",
        "/user-software/venv/pytorch/bin/pip",
        "/user-software/venv/pytorch",
        "/usr/local/lib/python3.11/dist-packages/torch/__init__.py",
    ]


def test_pip_on_the_host_installs_what_all_see_without_activation(installation, wheels):
    output = installation.run(
        f"""{pip_install(wheels)} >/dev/null; {pip_install(wheels, "networkx")} >/dev/null
{IMPORT}
srun -n1 singularity exec $SIF conda-python-simple -c 'import extra_package; extra_package.main()'
srun -n1 conda-python-distributed -c 'import extra_package; extra_package.main()'
singularity exec $SIF extra_package-command"""
    )
    assert output == THERE * 4
    listed = installation.run("pip list; echo @; list-packages; echo @; singularity exec $SIF list-packages")
    pip, outside, inside = listed.split("@\n")
    assert re.search(r"^extra.package +1\.0$", pip, re.MULTILINE)
    assert outside == inside
    assert re.search(r"^extra_package +1\.0 +user-software$", outside, re.MULTILINE)
    assert re.search(r"^networkx +99\.0 +user-software$", outside, re.MULTILINE)
    # the packages of the small image are bound from the host
    assert re.search(r"^torch +2\.13\.0\S* +host$", outside, re.MULTILINE)
    user = installation.run("list-packages --user")
    assert [line.split()[0] for line in user.splitlines()] == ["extra_package", "networkx"]


def test_packages_survive_a_rebuild_and_the_end_of_the_installed_image(installation, wheels):
    installation.add(wheels)
    packages = installation.directory / "venv/pytorch/lib/python3.11/site-packages"
    (packages / "zz_image.pth").write_text("")  # as if the image had its packages in another directory
    installation.install(options="--rebuild")
    assert installation.run(f"{IMPORT}; python -c 'import numpy'") == THERE
    output = installation.run(f"rm -f $SIF; module load PyTorch/2.13.0-mine; echo $SIF; {IMPORT}; make-squashfs")
    assert output.startswith(f"{installation.image}\n{THERE}")
    installation.install(options="--rebuild")
    assert installation.run(f"{IMPORT}; echo $SINGULARITY_BINDPATH").startswith(THERE)
    assert installation.packed.exists()


def test_an_environment_of_another_python_is_renamed_by_a_rebuild_unless_that_fails(installation, wheels):
    installation.add(wheels)
    environment = installation.directory / "venv" / "pytorch"
    (environment / "lib/python3.11").rename(environment / "lib/python3.10")  # of another Python
    fails = """sanity_check_paths = {'files': [], 'dirs': ['bin']}
sanity_check_commands = [
    'singularity exec $SIF python -c "import sys, torch; print(sys.prefix, torch.__name__); exit(9)"',
]"""
    result = installation.testbed.run_unchecked(installation.eb(fails, "--rebuild"))
    assert result.returncode != 0
    assert "/user-software/venv/pytorch torch" in result.stdout  # the sanity check used the new environment
    assert "it is kept as" not in result.stdout
    assert os.listdir(environment.parent) == ["pytorch"]
    assert (environment / "lib/python3.10/site-packages/extra_package.py").exists()
    assert sorted(path.name for path in installation.store.iterdir()) == ["2.13.0-mine"]

    output = installation.install(options="--rebuild")
    assert "does not fit the Python of the image" in output
    (kept,) = environment.parent.glob("pytorch_*")
    assert (kept / "lib/python3.10/site-packages/extra_package.py").exists()
    assert str(kept) in output
    assert installation.run("list-packages --user; python -c 'import sys; print(sys.prefix)'") == (
        "/user-software/venv/pytorch\n"
    )


def test_start_shell_runs_a_command_or_gives_a_prompt_inside_the_image(installation):
    inside = "echo inside $APPTAINER_NAME"
    assert installation.run(f"start-shell -c '{inside}'") == f"inside {installation.image.name}\n"
    terminal = f"{sys.executable} -c 'import pty; pty.spawn([\"start-shell\"])'"
    output = installation.run(f"{terminal} <<'END'\n{inside}\nexit 0\nEND")
    assert f"inside {installation.image.name}" in output
    assert re.search(rf"> {re.escape(inside)}", output)  # the input, after the prompt

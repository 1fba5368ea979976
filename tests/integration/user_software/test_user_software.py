"""Packages that users install on top of an image: their directory, rebuilds, and make-squashfs during a job.

In one file, for which the container module is installed once.
"""

import os
import re
import subprocess
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


def test_an_editable_package_is_seen_from_any_directory_on_every_rank(user, tmp_path):
    package = user.directory / "mine"
    (package / "mypkg").mkdir(parents=True)
    (package / "mypkg/__init__.py").write_text("VALUE = 1\n")
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "mypkg"\nversion = "1"\n'
    )
    user.run("cd mine; pip install --no-build-isolation -e .")  # as with isolation, without an index
    (package / "mypkg/__init__.py").write_text("VALUE = 2\n")
    line = "f'value {mypkg.VALUE} {mypkg.__file__}\\n'"
    (tmp_path / "train.py").write_text(f"import mypkg, os; os.write(1, {line}.encode())")
    output = user.run(f"cd {tmp_path}\nsrun -N2 -n2 singularity exec $SIF conda-python-distributed train.py")
    assert output.count(f"value 2 {package}/mypkg/__init__.py") == 2


DEFAULTING = "Defaulting to user installation because normal site-packages is not writeable"


@pytest.mark.parametrize("state", ["packed", pytest.param("not-writable", marks=pytest.mark.thorough)])
def test_without_write_permission_pip_installs_to_pythonuserbase_with_a_message(installation, wheels, state):
    installation.run(pip_install(wheels))
    if state == "packed":
        message = installation.run("make-squashfs")
        installation.run("make-squashfs --clean")
        assert "Before you change it with pip, run unmake-squashfs" in message
        assert not installation.directory.exists()
    else:
        subprocess.run(["chmod", "-R", "a-w", installation.directory], check=True)
    result = installation.run_unchecked(
        f"{pip_install(wheels, 'networkx')}\n{IMPORT}\nlist-packages --user; list-packages"
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING: Data image" not in result.stderr
    assert DEFAULTING in result.stdout
    assert THERE in result.stdout
    assert re.findall(r"^(\w+) @", result.stdout, re.MULTILINE) == ["extra_package", "networkx"]
    places = [str(path) for path in (installation.prefix / "home").rglob("networkx.py")]
    assert len(places) == 1
    assert re.match(rf"{installation.prefix}/home/.local/easybuild/PyTorch/2.13.0-mine-[0-9a-f]{{8}}/lib/", places[0])
    assert re.search(r"^networkx +99\.0 +PYTHONUSERBASE$", result.stdout, re.MULTILINE)
    subprocess.run(["chmod", "-R", "u+w", installation.store], check=True)
    if state == "packed":
        removal = installation.run_unchecked("pip uninstall --yes extra_package")
        assert removal.returncode == 1 and "run unmake-squashfs on the host first" in removal.stderr + removal.stdout
        assert "Traceback" not in removal.stderr + removal.stdout
        installation.run("unmake-squashfs")
        assert DEFAULTING not in installation.run(f"pip uninstall --yes --quiet networkx; {pip_install(wheels)}")


@pytest.mark.parametrize("command", ["make-squashfs", pytest.param("unmake-squashfs", marks=pytest.mark.thorough)])
def test_a_running_job_continues_and_starts_more_steps(installation, wheels, command):
    installation.add(wheels)
    if command == "unmake-squashfs":
        installation.run("make-squashfs")
        installation.run("make-squashfs --clean")
    late = (
        "import pathlib, time; pathlib.Path('ready').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\n"
        "import extra_package; extra_package.main()\n"
    )
    (wheels / "late.py").write_text(late)
    output = installation.run(
        f"""cd {wheels}
srun -n1 bash -c 'python late.py && {IMPORT.replace("'", '"')}' >output & job=$!
while [ ! -e ready ]; do kill -0 $job; sleep 0.05; done
{command}; touch go; wait $job; cat output
srun -n1 {IMPORT}; module load PyTorch/2.13.0-mine; srun -n1 {IMPORT}; echo $SINGULARITY_BINDPATH"""
    )
    assert output.count(THERE) == 4
    mounted = ".squashfs:/user-software" if command == "make-squashfs" else "2.13.0-mine:/user-software"
    assert mounted in output.splitlines()[-1]


def test_a_full_disk_is_one_line_of_error_and_the_packages_stay_in_use(installation, wheels):
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("only who may mount a file system can fill a small one")
    installation.run(pip_install(wheels))
    result = installation.run_unchecked(
        f"""cat >{wheels}/full <<'END'
cp -a {installation.store} {wheels}/saved
mount -t tmpfs -o size=4M none {installation.store} && cp -a {wheels}/saved/. {installation.store}
head -c 3M /dev/urandom >{installation.directory}/big
make-squashfs; echo status $?; ls -A {installation.store} | xargs; {IMPORT}
mount -o remount,size=8M {installation.store}
make-squashfs >/dev/null && env --unset=__PYTORCH_USER_SOFTWARE make-squashfs --clean; echo status $? # in another shell
mount -o remount,size=4M {installation.store}
unmake-squashfs; echo status $?; ls -A {installation.store} | xargs
END
unshare --mount bash {wheels}/full"""
    )
    assert result.stdout.splitlines() == [
        "status 1",
        ".2.13.0-mine.lock 2.13.0-mine 2.13.0-mine.commands",
        THERE.strip(),
        "status 0",
        "status 1",
        ".2.13.0-mine.lock 2.13.0-mine.commands 2.13.0-mine.squashfs",
    ]
    # Apptainer notes that the settings of the test have its old name
    first, second = (line for line in result.stderr.splitlines() if not line.startswith("INFO:"))
    assert re.match(r"make-squashfs: mksquashfs failed, nothing has changed \(.*No space left", first)
    assert re.match(r"unmake-squashfs: unpacking failed, nothing has changed \(.*No space left", second)

"""make-squashfs and unmake-squashfs: during a job, killed, and on a full disk."""

import re
import subprocess

import pytest
from user_installation import IMPORT, THERE, pip_install

pytestmark = [pytest.mark.testbed, pytest.mark.early]

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

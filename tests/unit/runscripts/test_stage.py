"""pytorch-stage with a written srun, sbcast and flux that have this node alone; on nodes it runs in test_staging.py."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from distributions import sha256
from programs import program
from pytorch_stage import find_fault, on_node
from tables import name as row_name
from tables import table
from variables import variables

pytestmark = pytest.mark.early

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "FLUX_URI": ""}
FLUX = {"SLURM_JOB_ID": "", "FLUX_URI": "local:///run/flux"}


#: Starts the command on this node; what stays there writes its number.
SRUN = """while [[ $1 == -* ]]; do echo "$1" >>options; shift; done; echo $$ >>"${0%/*}/../started"; exec "$@" """
FLUX_COMMAND = """case $1 in
getattr) echo 1 ;;
exec) shift; while [[ $1 == -* ]]; do shift; done; echo $$ >>"${0%/*}/../started"; exec "$@" ;;
archive)
    for word; do [[ $word != --*=* ]] || declare "${word:2}"; done
    case $2 in
    create) cp "$directory/${*: -1}" "archive$name" ;;
    extract) cp "archive$name" "$directory/x.sif" ;;
    remove) rm "archive$name" ;;
    esac ;;
esac"""


@pytest.fixture
def disk(tmp_path):
    path = tmp_path / "disk of the node"
    path.mkdir()
    return path


@pytest.fixture
def image(tmp_path):
    """The image of an installation, with its record."""
    root = tmp_path / "root"
    (root / "provenance").mkdir(parents=True)
    path = root / "x.sif"
    path.write_bytes(os.urandom(300_000))
    record = {"sha256": sha256(path)}
    (root / "provenance" / "image.json").write_text(json.dumps(record))
    return path


@pytest.fixture
def shell(image, disk, runscripts, tmp_path):
    """A function that runs a script in a job after loading the module of the image: output, message, status."""
    for name, text in {"srun": SRUN, "sbcast": 'cp --no-clobber "$2" "$3"', "flux": FLUX_COMMAND}.items():
        program(tmp_path / "bin" / name, text, "/bin/bash")

    def run(script, **variables):
        module = {"CONTAINERROOT": str(image.parent), "SIF": str(image), "SIFPYTORCH": str(image), **SLURM}
        path = f"{tmp_path}/bin:{runscripts}:{os.environ['PATH']}"
        env = {"PATH": path, "PYTORCH_LAUNCH_STAGE_DIR": str(disk), **module, **variables}
        options = {"capture_output": True, "text": True, "check": False, "timeout": 300, "cwd": tmp_path}
        done = subprocess.run(["bash", "-c", script], env=env, **options)
        return done.stdout.splitlines(), done.stderr, done.returncode

    yield run
    started = tmp_path / "started"
    for number in started.read_text().split() if started.exists() else ():
        with contextlib.suppress(OSError):  # it has ended
            if b"PYTORCH_STAGE_DIRECTORY" in Path(f"/proc/{number}/cmdline").read_bytes():
                os.kill(int(number), signal.SIGTERM)


def wait_until_empty(directory):
    deadline = time.monotonic() + 60
    while list(directory.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# one was submitted in a job whose copy is gone
@pytest.mark.parametrize("job", [SLURM, {**FLUX, "SIFPYTORCH": "/earlier/x.sif"}], ids=["Slurm", "Flux"])
def test_the_copy_has_the_variables_of_the_module_and_is_removed_with_the_job(shell, disk, job):
    script = 'source <(pytorch-stage); echo $SIF; [ "$SIF" = "$SIFPYTORCH" ] && stat -c %a "${SIF%/*}"'
    output, message, _ = shell(f"{script}; kill $(head -n 1 started)", **job)
    assert re.fullmatch(rf"{disk}/pytorch-stage-[0-9a-f]{{32}}/x.sif", output[0]), message
    assert output[1] == "700"
    assert "copied to 1 nodes" in message
    wait_until_empty(disk)


def test_an_image_with_another_bit_is_not_used_and_the_variables_stay(shell, image, disk):
    with image.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, 2000)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 2000)
    output, message, _ = shell('source <(pytorch-stage) || echo "status $?"; echo $SIF')
    assert output == ["status 1", str(image)]
    assert f"on {os.uname().nodename} does not have the recorded SHA-256" in message
    wait_until_empty(disk)


def test_any_files_are_staged_with_spaces_in_their_names(shell, tmp_path):
    (tmp_path / "a file.tar").write_text("a")
    (tmp_path / "b").write_text("b")
    script = 'source <(pytorch-stage "a file.tar" b); cd "$PYTORCH_STAGED"; printf "%s\\n" *'
    output, message, _ = shell(f"{script}; cd - >/dev/null; kill $(cat started)")
    assert output == ["a file.tar", "b"], message


#: Breaks a command of Slurm: it prints a text, and fails.
BROKEN = "sed -i '2s/.*/echo {} >\\&{}; exit 1/' bin/{}".format
SCRIPTS = {"broken srun": BROKEN("broken", 1, "srun"), "full disk": BROKEN("full", 2, "sbcast")}
ERRORS = """
before      | arguments        | variables                     | message
            | absent           |                               | /absent: No such file or directory. Check the path
            | .                |                               | Is a directory
            | --wrong          |                               | /--wrong: No such file
touch x.sif | x.sif root/x.sif |                               | the copy failed
rm root/provenance/image.json | |                              | image.json ([
            |                  | SIFPYTORCH=                   | no image or packed venv to stage
            |                  | SLURM_JOB_ID=                 | not in an allocation of Slurm
            |                  | SLURM_HET_SIZE=2              | job 7 is heterogeneous
            |                  | PYTORCH_LAUNCH_STAGE_DIR=/absent | /absent: No such file or directory. Set PYTORCH
            |                  | PYTORCH_LAUNCH_STAGE_DIR= TMPDIR=/proc | on proc, and not on a disk of the node
            |                  | PYTORCH_LAUNCH_STAGE_DIR= TMPDIR=/dev/shm | on tmpfs, and not on a disk of the node
broken srun |                  |                               | pytorch-stage: broken. Set PYTORCH_LAUNCH_STAGE_DIR
full disk   |                  |                               | pytorch-stage: the copy failed. Set PYTORCH
"""


@pytest.mark.parametrize("row", table(ERRORS), ids=row_name)
def test_an_error_has_what_to_do_and_leaves_nothing(shell, disk, row):
    before = SCRIPTS.get(row["before"], row["before"] or "true")
    output, said, status = shell(f"{before}; pytorch-stage {row['arguments']}", **variables(row["variables"]))
    assert (output, status) == (["! :"], 1)
    assert row["message"] in said
    wait_until_empty(disk)


def test_a_directory_that_every_user_can_change_is_not_used(disk, monkeypatch):
    monkeypatch.setenv("PYTORCH_LAUNCH_STAGE_DIR", str(disk))
    disk.chmod(0o777)
    assert "no sticky bit" in find_fault(str(disk))
    disk.chmod(0o1777)
    assert find_fault(str(disk)) is None


def test_a_directory_that_another_user_has_made_first_is_not_used(disk, monkeypatch, capfd):
    monkeypatch.setenv("PYTORCH_STAGE_DIRECTORY", f"{disk}/pytorch-stage-1")
    monkeypatch.setattr("sys.stdin", io.StringIO("go\ngo\n"))
    assert on_node() == 0
    assert (disk / "pytorch-stage-1").stat().st_mode & 0o777 == 0o700
    assert on_node() == 1
    assert "another user has made the directory first" in capfd.readouterr().out
    (disk / "pytorch-stage-1").rmdir()
    assert on_node() == 1 and not list(disk.iterdir())  # the command has ended


def test_the_name_is_not_in_the_arguments_that_other_users_can_read(shell, tmp_path, monkeypatch):
    program(tmp_path / "bin" / "srun", 'echo "$*" >>arguments; env >>variables; exit 1', "/bin/bash")
    shell("pytorch-stage")
    first = (tmp_path / "arguments").read_text().splitlines()[0]  # before the directory is there
    assert "pytorch-stage-" not in first and "--export=ALL" in first
    assert re.search(
        "^PYTORCH_STAGE_DIRECTORY=.*/pytorch-stage-[0-9a-f]{32}$", (tmp_path / "variables").read_text(), re.M
    )
    assert "SLURM_JOB_NUM_NODES" not in (tmp_path / "variables").read_text()

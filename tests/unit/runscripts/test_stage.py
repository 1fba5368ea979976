"""pytorch-stage with a launcher that starts one process here; with Slurm it runs in test_staging.py."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import pytorch_stage
from programs import program
from pytorch_stage import StageError, check_base, flux_commands, given, loaded, on_node, stage, starter

#: Starts one process on each node of a job that has this node.
LAUNCHER = ["env"]
MEMORY = "/dev/shm"  # noqa: S108
SHA = "0123456789abcdef" * 4
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}


RECORD = {"sha256": SHA}
PACKED, IMAGE = {"PYTORCH_PACKED": "copy"}, {"SIFPYTORCH": "{root}/site/x.sif"}


@pytest.mark.parametrize(
    ("record", "env", "expected"),
    [
        (RECORD, PACKED, ("venv.squashfs", ["PYTORCH_PACKED"])),  # wherever the variable leads
        (RECORD, IMAGE, ("site/x.sif", ["SIF", "SIFPYTORCH"])),  # the installed image is gone
        ({}, PACKED, "cannot read .*packed.json"),
        ({}, {}, "no image or packed venv to stage"),
    ],
)
def test_the_file_of_the_module_is_staged_if_it_has_a_record(tmp_path, record, env, expected):
    for directory in ("provenance", "site"):
        (tmp_path / directory).mkdir()
    for kind, name in (("packed", "venv.squashfs"), ("image", "site/x.sif")):
        (tmp_path / name).touch()
        (tmp_path / "provenance" / f"{kind}.json").write_text(json.dumps(record))
    env = {"CONTAINERROOT": str(tmp_path), **{name: value.format(root=tmp_path) for name, value in env.items()}}
    if isinstance(expected, str):
        with pytest.raises(StageError, match=expected):
            loaded(env)
    else:
        file, named = expected
        assert loaded(env) == ({str(tmp_path / file): SHA}, named)


@pytest.fixture
def disk(tmp_path):
    """The directory of the copies; empty afterwards."""
    path = tmp_path / "disk of the node"
    path.mkdir()
    yield path
    assert list(path.iterdir()) == []


@pytest.fixture
def image(tmp_path):
    """The image of an installation, with its record."""
    root = tmp_path / "root"
    (root / "provenance").mkdir(parents=True)
    path = root / "x.sif"
    path.write_bytes(os.urandom(3_000_000))
    record = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (root / "provenance" / "image.json").write_text(json.dumps(record))
    return path


def changed(directory, old, new):
    """Copy the command with another text in place of one; returns its path."""
    shutil.copytree(Path(pytorch_stage.__file__).parent, directory / "runscripts")
    path = directory / "runscripts" / "pytorch_stage.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return directory / "runscripts" / "pytorch-stage"


@pytest.fixture
def shell(image, disk, runscripts, tmp_path):
    """A function that runs a script in a shell after loading the module of the image: output, message, status."""

    def run(script, program="bash", **variables):
        module = {"CONTAINERROOT": str(image.parent), "SIF": str(image), "SIFPYTORCH": str(image)}
        places = {"PATH": f"{runscripts}:{os.environ['PATH']}", "PYTORCH_LAUNCH_STAGE_DIR": str(disk)}
        options = {"capture_output": True, "text": True, "check": False, "timeout": 300, "cwd": tmp_path}
        done = subprocess.run([program, "-c", script], env={**places, **module, **variables}, **options)
        return done.stdout.splitlines(), done.stderr, done.returncode

    return run


SOURCE = f"source <(pytorch-stage -- {' '.join(LAUNCHER)})"


@pytest.mark.parametrize("end", ["", "exit 3", "false", "kill -TERM $$", "kill -INT $$", "kill -HUP $$"])
def test_the_users_own_exit_trap_runs_too_with_the_status_of_the_script(shell, end):
    output, message, status = shell(f"""set -euo pipefail
trap 'echo "it'"'"'s mine: $? # "' EXIT
{SOURCE}
{SOURCE}
{end}""")
    expected = {"exit 3": 3, "false": 1}.get(end, 0)
    assert len(output) == 1, message
    if not end.startswith("kill"):
        assert output == [f"it's mine: {expected} # "]
        assert status == expected


def test_a_subshell_does_not_run_the_trap_of_its_parent(shell):
    output, _, _ = shell(f"trap 'echo parent' EXIT; ({SOURCE}; echo sub); ({SOURCE}; trap -p EXIT); echo end")
    assert [line for line in output if "pytorch_stage" not in line and line != "trap -- '"] == ["sub", "end", "parent"]


def test_zsh_can_source_it(shell):
    if not shutil.which("zsh"):
        pytest.skip("zsh is not installed")
    output, message, status = shell(f"trap 'echo mine' EXIT; {SOURCE}; echo $? $SIF", program="zsh")
    assert re.fullmatch(r"0 .*/pytorch-stage-\w+/x.sif", output[0]), message
    assert (output[1:], status) == (["mine"], 0)


def test_an_image_with_another_bit_is_not_used_and_the_variables_stay(shell, image, disk):
    with image.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, 2_000_000)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1]), 2_000_000)
    output, message, _ = shell(f'{SOURCE} || echo "status $?"; echo $SIF; trap -p EXIT; ls -A "{disk}"')
    assert output == ["status 1", str(image)]
    assert f"{os.uname().nodename}: {image}, or its copy, has not the recorded SHA-256" in message
    assert shell(f"pytorch-stage --print -- {LAUNCHER[0]}")[::2] == ([], 1)


@pytest.mark.parametrize("command", ["pytorch-stage --print -- env", "list-packages", "pytorch-doctor --only home"])
def test_output_to_a_disk_that_is_full_is_an_error_with_a_name(shell, command):
    output, message, status = shell(f"{command} >/dev/full", WITH_CONDA="true", WITH_VENV="true")
    assert (output, status) == ([], 1)
    last = message.splitlines()[-1]
    assert re.match(rf"{command.split()[0]}: .*standard output: No space left on device\. Check", last), message


def test_a_failure_ends_a_script_that_ends_with_errors_and_the_shared_file_is_printed(shell, image):
    output, message, status = shell("set -e; source <(pytorch-stage -- false); echo reached")
    assert (output, status) == ([], 1)
    assert "no answer from the processes that false was to start. Set PYTORCH_LAUNCH_STAGE_DIR" in message
    assert shell("pytorch-stage --print -- false")[::2] == ([str(image)], 1)
    assert "nowhere not found on PATH. Add it, or name another" in shell("source <(pytorch-stage -- nowhere)")[1]


def test_the_printed_path_comes_with_the_command_that_removes_the_copy(shell):
    output, _, _ = shell("""pytorch-stage --print -- env 2>message
eval "$(sed -n "s/.*to remove the copies: //p" message)" """)
    assert re.search(r"/pytorch-stage-\w+/x.sif$", output[0])


def test_any_files_are_staged_with_spaces_in_their_names(shell, tmp_path, disk):
    (tmp_path / "a file.tar").write_text("a")
    (tmp_path / "b").write_text("b")
    script = 'source <(pytorch-stage "a file.tar" b b -- env); cd "$PYTORCH_STAGED"; printf "%s\\n" *; echo $SIF'
    output, message, _ = shell(script)
    assert output[:2] == ["a file.tar", "b"], message
    assert output[2].endswith("/root/x.sif")


def test_what_is_not_a_file_and_two_files_of_one_name_are_errors(tmp_path):
    (tmp_path / "d").mkdir()
    for path in (tmp_path / "b", tmp_path / "d" / "b"):
        path.touch()
    with pytest.raises(StageError, match="two files have the same name"):
        given([str(tmp_path / "b"), str(tmp_path / "d" / "b")])
    os.mkfifo(tmp_path / "pipe")
    for name in ("d", "pipe"):
        with pytest.raises(StageError, match=f"/{name} is not a file"):
            given([str(tmp_path / name)])


def make(base):
    """Make the directory of an order on this node."""
    on_node("make", {}, 5, True, f"{base}/pytorch-stage-1")


def test_a_directory_in_memory_is_used_only_if_the_user_has_chosen_it():
    if subprocess.check_output(["stat", "-f", "-c", "%T", MEMORY], text=True) != "tmpfs\n":
        pytest.skip(f"{MEMORY} is not a tmpfs here")
    with pytest.raises(StageError, match=f"{MEMORY}: it is on tmpfs, and not on a disk of the node"):
        check_base(MEMORY, 5, is_chosen=False)
    check_base(MEMORY, 5, is_chosen=True)
    with pytest.raises(StageError, match=r"GB free, 8796\.\d+ GB needed"):
        check_base(MEMORY, 1 << 43, is_chosen=True)


def test_a_directory_that_every_user_can_change_is_not_used(disk):
    disk.chmod(0o777)
    with pytest.raises(StageError, match="every user can replace what is in .*disk of the node, as it has no sticky"):
        check_base(str(disk), 5, is_chosen=True)
    disk.chmod(0o1777)
    make(disk)
    assert (disk / "pytorch-stage-1").stat().st_mode & 0o777 == 0o700
    (disk / "pytorch-stage-1").rmdir()


def test_the_next_directory_is_used_if_the_first_one_is_not_suitable(shell, image, tmp_path):
    missing = tmp_path / "missing"
    variables = {"PYTORCH_LAUNCH_STAGE_DIR": "", "SLURM_TMPDIR": str(missing), "TMPDIR": "/proc"}
    output, message, _ = shell(f"{SOURCE}; echo $SIF", **variables)
    assert output[0].startswith(("/tmp/pytorch-stage-", "/var/tmp/pytorch-stage-")), message  # noqa: S108
    assert not Path(output[0]).parent.exists()
    _, message, _ = shell(SOURCE, PYTORCH_LAUNCH_STAGE_DIR=str(missing))
    assert f"{os.uname().nodename}: {missing}: No such file or directory. Set PYTORCH_LAUNCH_STAGE_DIR" in message


def test_a_disk_that_is_full_is_named_with_its_node_and_file(disk, image, capsys, monkeypatch):
    def fill(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fill)
    make(disk)
    path = disk / "pytorch-stage-1"
    on_node("copy", {str(image): SHA}, 5, True, str(path))
    assert f"{os.uname().nodename}: {path}/x.sif: No space left on device" in capsys.readouterr().out
    path.rmdir()


def test_two_processes_on_one_node_are_an_error(shell, tmp_path):
    twice = program(tmp_path / "twice", '"$@"; "$@"')
    output, message, _ = shell(f"source <(pytorch-stage -- {twice}) || echo $?")
    assert output == ["1"]
    assert "is shared between nodes, or two processes run on this node" in message


def test_a_name_that_another_user_made_first_is_not_used_and_another_one_is_tried(image, disk, shell, tmp_path, capsys):
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    names = "names = iter('abcde'); secrets.token_hex = lambda _: next(names)"
    program = changed(tmp_path, "\nPROGRAM, ", f"\n{names}\nPROGRAM, ")
    for name in "1ab":
        (disk / f"pytorch-stage-{name}").mkdir()
        os.chown(disk / f"pytorch-stage-{name}", 65534, 65534)
    foreign = disk / "pytorch-stage-1"
    make(disk)
    assert f"user 65534 has made {foreign} first: try again" in capsys.readouterr().out
    assert list(foreign.iterdir()) == []
    foreign.rmdir()
    output, message, _ = shell(f"source <({program} -- env) && echo $SIF || echo $?")  # root also removes theirs
    assert output == [f"{disk}/pytorch-stage-c/x.sif"]
    assert "has made" not in message


def test_the_name_is_not_in_the_arguments_that_other_users_can_read(monkeypatch):
    started = []

    def record(command, *_, env, **__):
        started.append((command, env))
        raise OSError

    monkeypatch.setattr(subprocess, "Popen", record)
    monkeypatch.setattr(shutil, "which", lambda command: command)
    for name, text in {**JOB, "PYTORCH_LAUNCH_STAGE_DIR": "/disk"}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(OSError), contextlib.ExitStack() as undo:
        stage({}, [], undo)
    [(words, env)] = started
    assert "pytorch-stage-" not in " ".join(words)
    assert re.fullmatch("/disk/pytorch-stage-[0-9a-f]{32}", json.loads(env["PYTORCH_STAGE_ORDER"])["directory"])


def test_steps_run_beside_those_of_the_job_and_take_none_of_their_options(step):
    env = {**step, "SLURM_JOB_NUM_NODES": "3", "SLURM_CONF": "/s.conf", "SLURM_CPU_BIND": "quiet", "HOME": "/h"}
    how, start, own = starter(env, [])
    assert (how, start[:2]) == ("Slurm", ["srun", "--overlap"])
    assert start[-4:] == ["--jobid=7", "--nodes=3", "--ntasks=3", "--immediate=120"]
    assert own == {"SLURM_JOB_ID": "7", "SLURM_CONF": "/s.conf", "HOME": "/h"}


@pytest.mark.parametrize("env", [{}, {**JOB, "SLURM_HET_SIZE": "2"}])
def test_without_a_job_that_is_known_the_message_has_the_command_to_type(env):
    with pytest.raises(StageError, match="process on each node: pytorch-stage -- mpirun --map-by ppr:1:node"):
        starter(env, [])


def test_flux_archives_the_file_and_extracts_it_on_each_node(image):
    how, start, _ = starter({"FLUX_URI": "local:///run/flux"}, [])
    assert (how, start) == ("Flux", ["flux", "exec", "--noinput", "--rank=all"])
    create, extract, remove = flux_commands(start, {str(image): SHA}, "/disk/pytorch-stage-1")
    name = "--name=pytorch-stage-1"
    assert create == ["flux", "archive", "create", "--mmap", name, f"--directory={image.parent}", "x.sif"]
    assert extract[: len(start)] == start
    assert extract[-3:] == ["--waitcreate", name, "--directory=/disk/pytorch-stage-1"]
    assert remove == ["flux", "archive", "remove", name]


@pytest.fixture
def slow(tmp_path):
    """A launcher whose processes take long after the copy."""
    return program(tmp_path / "slow", '"$@"; [ "$1" = rm ] || sleep 2')


def test_a_shell_that_is_killed_during_the_copy_leaves_nothing(shell, slow, disk):
    killer = f"{{ until compgen -G '{disk}/*/x.sif' >/dev/null; do :; done; kill -KILL $$; }} &"
    assert shell(f"{killer} {SOURCE[:-4]} {slow})")[2] == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while list(disk.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_during_the_copy_removes_it(image, disk, runscripts, slow, number):
    module = {"CONTAINERROOT": str(image.parent), "SIFPYTORCH": str(image)}
    env = {**os.environ, **module, "PYTORCH_LAUNCH_STAGE_DIR": str(disk)}
    command = [runscripts / "pytorch-stage", "--", slow]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        while not list(disk.glob("*/x.sif")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.communicate(timeout=300)[0] == "! :\n"
        assert process.returncode == 128 + number


KILLED = "srun: error: n2: task 1: Killed"
GONE = "slurmstepd: error: execve(): /opt/python3: No such file"


@pytest.mark.parametrize(
    ("job", "seconds", "text", "message"),  # seconds before the last ten
    [
        *((job, -9, "exec sleep 200", "no process on some node") for job in ({}, JOB)),
        (JOB, 120, f"echo '{KILLED}' >&2; exec sleep 200", KILLED),  # at once
        (JOB, 120, f"echo '{GONE}' >&2; echo 'srun: error: n2: task 1: Exited with exit code 2' >&2; sleep 200", GONE),
    ],
)
def test_processes_that_do_not_start_or_are_killed_are_an_error(shell, tmp_path, job, seconds, text, message):
    stuck = program(tmp_path / "bin" / "srun", text)
    staging = changed(tmp_path, "START_SECONDS = 120", f"START_SECONDS = {seconds}")
    line = f"source <({staging}) || echo $?" if job else f"source <({staging} -- {stuck}) || echo $?"
    output, found, _ = shell(f"PATH={stuck.parent}:$PATH; {line}", **job)
    assert output == ["1"]
    assert message in found and "Set PYTORCH_LAUNCH_STAGE_DIR" in found


def test_the_command_without_a_module_fails_and_so_does_the_line_that_sources_it(runscripts):
    command, env = runscripts / "pytorch-stage", {"PATH": os.environ["PATH"]}
    line = f"source <({command}) && echo sourced; {command} --print --wrong; echo $?"
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, text=True, check=False)
    assert done.stdout == "2\n"
    assert "no image or packed venv to stage. Load a PyTorch module" in done.stderr
    assert "unknown arguments '--print --wrong'. See --help" in done.stderr

"""The commands in bin/ of modules around images of enroot, the Container Engine, podman-hpc and Shifter."""

import os
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[3]
PROGRAMS = {"enroot": "enroot", "podman-hpc": "podman-hpc", "container-engine": "srun", "shifter": "shifter"}


@pytest.fixture(params=PROGRAMS)
def enter(request, tmp_path):
    """A function that runs a command of an installation's bin/ with the environment given."""
    root = tmp_path / "with blank"
    for part in ("libexec", "runscripts"):
        (root / part).mkdir(parents=True)
        for file in (TREE / part).iterdir():
            (root / part / file.name).symlink_to(file)
    installed = f"engine={request.param} image={tmp_path}/image packages=.local/mine binds=(/usr /nowhere)\n"
    (root / "libexec" / "installation.bash").write_text(installed)
    (root / "bin").mkdir()
    for name in ("get-master", "python", "start-shell"):
        (root / "bin" / name).symlink_to("../libexec/enter")
    (tmp_path / "image").touch()
    site = tmp_path / "site"
    site.mkdir()
    # the program starts the last words, after the image and the options: in "the image", EDITOR is its own
    (site / PROGRAMS[request.param]).write_text(
        '#!/bin/bash\nprintf "<%s>" "$@" >"$CALLS"\n'
        "while (($#)) && [[ $1 != bash ]]; do shift; done; (($#)) || exit 0\n"
        'exec env -i PATH=/usr/bin:/bin EDITOR=image PYTORCH_HOST="$PYTORCH_HOST" "$@"\n'
    )
    (site / PROGRAMS[request.param]).chmod(0o755)

    def run(name, *arguments, **environment):
        variables = {"PATH": f"{root}/bin:{site}:/usr/bin:/bin", "CALLS": str(tmp_path / "calls")}
        variables.update(dict.fromkeys(("PYTORCH_IMAGE", "PYTORCH_EDF", "SHIFTER_IMAGE"), str(tmp_path / "image")))
        variables.update(CONTAINERROOT=str(root), PYTORCH_MOUNTS="/a:/b:ro,/c d:/c d")
        options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "check": False}
        command = root / "bin" / name
        return subprocess.run([command, *arguments], env={**variables, **environment}, cwd=tmp_path, **options)

    run.kind = request.param
    run.root = root
    run.called = lambda: (tmp_path / "calls").read_text()
    return run


def test_commands_enter_the_image_with_what_they_mount(enter, tmp_path):
    enter("python", "-c", "a b", PYTORCH_PODMAN_OPTIONS="--gpu --nccl")
    called, here = enter.called(), os.path.realpath(tmp_path)
    assert called.endswith("<python><-c><a b>")
    if enter.kind == "enroot":
        bind = ":none:x-create=auto,rbind"
        assert f"<--mount></a:/b{bind},ro><--mount></c d:/c d{bind}><--mount><{here}:{here}{bind}>" in called
        assert "enroot.rc>" in called and f"<{tmp_path}/image><bash>" in called
    elif enter.kind == "podman-hpc":
        assert called.startswith("<run><--gpu><--nccl><--><--rm><-i>")
        assert "<--volume=/a:/b:ro><--volume=/c d:/c d>" in called
    elif enter.kind == "shifter":
        assert called == f"<--image={tmp_path}/image><python><-c><a b>"
        (tmp_path / "site" / "python").symlink_to("/bin/echo")
        assert enter("python", "a", SHIFTER_IMAGEREQUEST="x:1").stdout == "a\n"  # in the image
    else:
        assert called == f"<--nodes=1><--ntasks=1><--environment={tmp_path}/image><python><-c><a b>"
        for step in ("4294967290", "-6", "-5"):  # shells of salloc and sbatch, from which srun starts steps
            enter("python", SLURM_STEP_ID=step)
            assert enter.called() == f"<--nodes=1><--ntasks=1><--environment={tmp_path}/image><python>"


def test_runscripts_are_called_by_their_path_on_the_host(enter):
    enter("get-master", "x")
    assert enter.called().endswith(f"<{enter.root}/bin/../libexec/../runscripts/get-master><x>")


def test_the_image_has_the_hosts_variables_but_its_own_take_precedence(enter, tmp_path):
    if enter.kind in ("container-engine", "shifter"):
        pytest.skip("pyxis and Shifter pass the variables on")
    show = 'printf "%s|" "$PWD" "$EDITOR" "$PATH" "$GREETING" "${PYTORCH_HOST-unset}"'
    result = enter("start-shell", "-c", show, EDITOR="host", GREETING="a\n\"b\" '$c'")
    assert result.stdout == f"{os.path.realpath(tmp_path)}|image|/usr/bin:/bin|a\n\"b\" '$c'|unset|", result.stderr
    # the tables of Lmod, which can be longer than a variable may be, stay on the host
    tables = {f"_ModuleTable{number:03}_": "x" * 60_000 for number in (1, 2)}
    show = 'echo "$GREETING ${_ModuleTable001_-unset}"'
    result = enter("start-shell", "-c", show, GREETING="hello", **tables)
    assert (result.stdout, result.stderr) == ("hello unset\n", "")


def test_without_the_module_a_command_finds_its_image_and_its_directories(enter, tmp_path):
    others = {"PYTORCH_IMAGE": "/other", "PYTORCH_EDF": "/other", "PYTORCH_MOUNTS": "/o:/o", "SHIFTER_IMAGE": ""}
    result = enter("start-shell", "-c", "true", CONTAINERROOT="/elsewhere", **others)
    assert result.returncode == 0, result.stderr
    called, root = enter.called(), os.path.realpath(enter.root)
    assert f"{tmp_path}/image" in called and "/o:/o" not in called
    if enter.kind in ("enroot", "podman-hpc"):  # the others' mounts are in a definition file, or the site's
        assert f"{root}/runscripts:/runscripts" in called and "/usr:/usr" in called and "/nowhere" not in called


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PYTORCH_IMAGE": "/gone", "PYTORCH_EDF": "/gone"}, "not found: PYTORCH_{}='/gone'. Load the module again\n"),
        ({"SLURM_STEP_ID": "0"}, "python: not in the image. Start it with srun --environment=$PYTORCH_EDF\n"),
    ],
    ids=["missing", "in a step"],
)
def test_what_keeps_a_command_out_of_the_image_is_reported(enter, environment, message):
    reports = {"enroot": ["PYTORCH_EDF"], "container-engine": ["PYTORCH_EDF", "SLURM_STEP_ID"]}.get(enter.kind, ())
    if not any(name in environment for name in reports):
        pytest.skip("podman-hpc and Shifter report it themselves, and only srun is not started by a task")
    result = enter("python", **environment)
    assert result.returncode in (1, 2)
    assert message.format("EDF" if enter.kind == "container-engine" else "IMAGE") in result.stderr

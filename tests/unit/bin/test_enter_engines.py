"""The commands in bin/ of modules around images of enroot, the Container Engine, podman-hpc and Shifter."""

import os

import pytest

PROGRAMS = {"enroot": "enroot", "podman-hpc": "podman-hpc", "container-engine": "srun", "shifter": "shifter"}
#: Keeps its arguments, and starts the last words, after the image and the options. In "the image", EDITOR is its own.
PROGRAM = """#!/bin/bash
printf "<%s>" "$@" >"$CALLS"
while (($#)) && [[ $1 != bash ]]; do shift; done; (($#)) || exit 0
exec env -i PATH=/usr/bin:/bin EDITOR=image PYTORCH_HOST="$PYTORCH_HOST" "$@"
"""


@pytest.fixture(params=PROGRAMS)
def enter(request, installed):
    """A function that runs a command of an installation's bin/ with the environment given."""
    (installed.root / "libexec" / "installation.bash").write_text(
        f"engine={request.param} image='{installed.image}' packages=.local/mine binds=(/usr /nowhere)\n"
    )
    calls = installed.work / "calls"
    program = installed.runtime / PROGRAMS[request.param]
    program.write_text(PROGRAM)
    program.chmod(0o755)
    variables = dict.fromkeys(("PYTORCH_IMAGE", "PYTORCH_EDF", "SHIFTER_IMAGE"), str(installed.image))
    variables.update(CONTAINERROOT=str(installed.root), PYTORCH_MOUNTS="/a:/b:ro,/c d:/c d", CALLS=str(calls))

    def run(name, *arguments, **environment):
        process = installed.start(name, *arguments, **{**variables, **environment})
        return (*process.communicate(), process.returncode)

    run.kind = request.param
    run.called = calls.read_text
    run.root = installed.root
    run.image = installed.image
    run.here = os.path.realpath(installed.work)
    return run


def test_commands_enter_the_image_with_what_they_mount(enter, installed):
    enter("python", "-c", "a b", PYTORCH_PODMAN_OPTIONS="--gpu --nccl")
    called = enter.called()
    assert called.endswith("<python><-c><a b>")
    if enter.kind == "enroot":
        bind = ":none:x-create=auto,rbind"
        mounts = f"<--mount></a:/b{bind},ro><--mount></c d:/c d{bind}><--mount><{enter.here}:{enter.here}{bind}>"
        assert mounts in called and "enroot.rc>" in called and f"<{enter.image}><bash>" in called
    elif enter.kind == "podman-hpc":
        assert called.startswith("<run><--gpu><--nccl><--><--rm><-i>")
        assert "<--volume=/a:/b:ro><--volume=/c d:/c d>" in called
    elif enter.kind == "shifter":
        assert called == f"<--image={enter.image}><python><-c><a b>"
        (installed.runtime / "python").symlink_to("/bin/echo")
        assert enter("python", "a", SHIFTER_IMAGEREQUEST="x:1")[0] == "a\n"  # in the image
    else:
        start = f"<--nodes=1><--ntasks=1><--environment={enter.image}><python>"
        assert called == f"{start}<-c><a b>"
        for step in ("4294967290", "-6", "-5"):  # shells of salloc and sbatch, from which srun starts steps
            enter("python", SLURM_STEP_ID=step)
            assert enter.called() == start
    enter("get-master", "x")  # by its path on the host
    assert enter.called().endswith(f"<{enter.root}/bin/../libexec/../runscripts/get-master><x>")


def test_without_the_module_a_command_finds_its_image_and_its_directories(enter):
    others = {"PYTORCH_IMAGE": "/other", "PYTORCH_EDF": "/other", "PYTORCH_MOUNTS": "/o:/o", "SHIFTER_IMAGE": ""}
    _, errors, status = enter("start-shell", "-c", "true", CONTAINERROOT="/elsewhere", **others)
    assert status == 0, errors
    called = enter.called()
    root = os.path.realpath(enter.root)
    assert str(enter.image) in called and "/o:/o" not in called
    if enter.kind in ("enroot", "podman-hpc"):  # the others' mounts are in a definition file, or the site's
        assert f"{root}/runscripts:/runscripts" in called and "/usr:/usr" in called and "/nowhere" not in called


GONE = {"PYTORCH_IMAGE": "/gone", "PYTORCH_EDF": "/gone"}
NOT_FOUND = "not found: PYTORCH_{}='/gone'. Load the module again\n"
NOT_IN = "python: not in the image. Start it with srun --environment=$PYTORCH_EDF\n"


@pytest.mark.parametrize(
    ("enter", "environment", "message"),
    [
        ("enroot", GONE, NOT_FOUND.format("IMAGE")),
        ("container-engine", GONE, NOT_FOUND.format("EDF")),
        ("container-engine", {"SLURM_STEP_ID": "0"}, NOT_IN),
    ],
    indirect=["enter"],
)
def test_what_keeps_a_command_out_of_the_image_is_reported(enter, environment, message):
    """podman-hpc and Shifter report it themselves, and only srun is not started by a task."""
    _, errors, status = enter("python", **environment)
    assert status in (1, 2) and message in errors

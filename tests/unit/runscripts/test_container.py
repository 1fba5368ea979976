"""What is in a container, and what is missing there."""

import subprocess
import sys

import pytest
from pytorch_launch import LaunchError, container
from pytorch_launch.container import bind_line, check_cleaned, check_directory, in_container


def test_a_container_that_fell_back_to_the_home_directory_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path), "APPTAINER_CONTAINER": "/image.sif"}
    with pytest.raises(LaunchError) as raised:
        check_directory(env, "/scratch/job")
    assert str(raised.value) == (
        f"/scratch/job, the job's directory, is not visible in this image, which started in {tmp_path}. "
        "Bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/scratch/job`"
    )
    for usual, directory in (
        (env, str(tmp_path)),
        (env, None),
        ({**env, "HOME": "/root"}, "/scratch/job"),
        ({"HOME": str(tmp_path)}, "/scratch/job"),
    ):
        check_directory(usual, directory)


def test_a_cleaned_environment_is_an_error_that_names_the_option(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "RUNSCRIPTS", str(tmp_path))
    check_cleaned({}, False, set())  # an empty directory of an image
    (tmp_path / "launch.bash").touch()
    check_cleaned({"RUNSCRIPTS": "/module/runscripts"}, False, set())
    with pytest.raises(LaunchError, match="--cleanenv, -e, --containall or APPTAINER_CLEANENV removed them"):
        check_cleaned({}, False, set())


@pytest.mark.parametrize(
    ("launcher", "variable", "is_fault"),
    [
        ("slurmstepd", "APPTAINER_CONTAINER", True),
        ("mpirun", "APPTAINER_CONTAINER", True),
        ("bash", "APPTAINER_CONTAINER", False),
        ("mpirun", "HOME", False),  # on a host
        ("mpirun", "USER", False),
        ("slurmstepd", "SLURM_JOB_ID", False),
    ],
)
def test_so_is_one_of_an_image_that_brings_the_launcher(runscripts, tmp_path, launcher, variable, is_fault):
    """Its wheel: no directory is bound. The processes above it show what started it."""
    (tmp_path / launcher).symlink_to("/bin/bash")
    main = f"{runscripts}/pytorch_launch/__main__.py"
    line = f"{sys.executable} -I -S {main} conda-python-distributed --dry-run; exit $?"
    env = {"TMPDIR": str(tmp_path), variable: "7"}
    if variable in ("USER", "SLURM_JOB_ID"):
        env["APPTAINER_CONTAINER"] = "/image.sif"
    done = subprocess.run([tmp_path / launcher, "-c", line], env=env, text=True, check=False, capture_output=True)
    message = f"{launcher} started this image, but its variables are missing: --cleanenv"
    assert (done.returncode, message in done.stderr) == (2 * is_fault, is_fault)


def test_the_runscripts_of_a_host_are_no_image(monkeypatch):
    monkeypatch.setattr(container, "exists", lambda path: path == "/runscripts")
    assert in_container({"PYTORCH_IMAGE": "image.sqsh"}) and not in_container({})


def test_a_directory_that_an_image_does_not_see_is_told_the_line_of_its_engine():
    lines = [bind_line(env, "/data") for env in ({"PYTORCH_MOUNTS": "/own:/own"}, {})]
    assert lines == ["mount it: `export PYTORCH_MOUNTS=$PYTORCH_MOUNTS,/data:/data`", "mount /data in the image"]

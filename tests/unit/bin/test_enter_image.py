"""Commands of a container module's bin/ on the host: each becomes the runtime, which starts it in the image."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

ENTER_IMAGE = Path(__file__).parents[3] / "libexec" / "enter-image"
#: A runtime without an image: reports the process that it is and its arguments, then starts the command.
RUNTIME = """#!/bin/bash
printf '%s\\n' $$ "${0##*/}" "${@:1:2}"
export APPTAINER_CONTAINER=$2
shift 2
exec "$@"
"""
STEPS = (
    {},
    {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "8(x2),4"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
    {"PMI_LOCAL_SIZE": "8"},
)


@pytest.fixture
def start(tmp_path):
    """Starts a command of the module's bin/ in an environment with `variables`; returns the process."""
    places = {name: tmp_path / name for name in ("bin", "runtime")}
    for place in places.values():
        place.mkdir()
    image = tmp_path / "image of the module.sif"
    image.touch()
    (places["runtime"] / "singularity").write_text(RUNTIME)
    (places["runtime"] / "singularity").chmod(0o755)

    def run(command, *arguments, **variables):
        (places["bin"] / command).symlink_to(ENTER_IMAGE)
        env = {"PATH": f"{places['bin']}:{places['runtime']}:/usr/bin:/bin", "SIFPYTORCH": str(image), **variables}
        return subprocess.Popen(
            [places["bin"] / command, *arguments],
            env=env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return run


@pytest.mark.parametrize("variables", STEPS, ids=["alone", "srun", "mpirun", "pmi"])
def test_a_rank_becomes_the_runtime_itself_under_any_launcher(start, tmp_path, variables):
    rank = start("env", "-0", **variables)
    output, errors = rank.communicate()
    process, runtime, verb, image, environment = output.split("\n", 4)
    assert (int(process), runtime, verb) == (rank.pid, "singularity", "exec")
    assert image == str(tmp_path / "image of the module.sif")
    assert (rank.returncode, errors) == (0, "")
    given = dict(entry.split("=", 1) for entry in environment.split("\0") if entry)
    assert given.keys() - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "SIFPYTORCH", "APPTAINER_CONTAINER", *variables}
    assert given.items() >= variables.items()


def test_the_exit_status_is_the_commands(start):
    rank = start("bash", "-c", "exit 3")
    rank.communicate()
    assert rank.returncode == 3


def test_a_signal_reaches_the_command(start):
    rank = start("sleep", "1000")
    assert int(rank.stdout.readline()) == rank.pid
    os.kill(rank.pid, signal.SIGTERM)
    rank.communicate()
    assert rank.returncode == -signal.SIGTERM


def test_a_command_that_does_not_exist_is_an_error(start):
    rank = start("no-such-command", SLURM_STEP_TASKS_PER_NODE="2", SLURM_JOB_ID="7")
    rank.communicate()
    assert rank.returncode == 127

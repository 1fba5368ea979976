"""The world that a command gives to Python, and ddp-env to a shell."""

import json
import re
import shlex
import socket
from pathlib import Path

import pytest
from command_environment import CACHE_VARIABLES, PATH, SHOW_ENVIRONMENT, TORCH_VARIABLES


def dry_run(run, env):
    lines = run("conda-python-distributed", "--dry-run", env=env).splitlines()
    assert lines == sorted(lines)
    return dict(line.split("=", 1) for line in lines)


# The world


def test_a_dry_run_prints_exactly_what_python_would_see(run, step):
    printed = dry_run(run, step)
    without = json.loads(run("conda-python-simple", "-c", SHOW_ENVIRONMENT, env=step))
    with_launcher = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=step))
    for env in (without, with_launcher):
        env.pop("_", None)  # bash's own: the program it started
    assert set(printed) == TORCH_VARIABLES | CACHE_VARIABLES
    assert with_launcher == {**without, **printed}


def test_a_virtual_local_rank_is_0_on_every_rank_and_a_dry_run_creates_nothing(run, step, home):
    command = ["conda-python-distributed", "--virtual-local-rank", "--dry-run", "-c", "print('started')"]
    printed = run(*command, env=step)
    assert "LOCAL_RANK=0\n" in printed and "LOCAL_WORLD_SIZE=2\n" in printed and "started" not in printed
    assert list((home.parent / "tmp").iterdir()) == []


def test_a_program_that_a_rank_0_started_may_launch_another_with_its_port(run):
    with socket.create_server(("", 0)) as own:
        port = str(own.getsockname()[1])
        assert run("conda-python-distributed", "-c", "print(1)", env={"MASTER_PORT": port}) == "1\n"


def test_a_launch_inside_a_virtual_local_rank_is_one_too(run, step, runscripts):
    code = f"import os; os.execv('{runscripts}/conda-python-distributed', ['x', '--dry-run'])"
    printed = run("conda-python-distributed", "--virtual-local-rank", "-c", code, env=step)
    assert "LOCAL_RANK" not in {line.split("=")[0] for line in printed.splitlines()}


@pytest.mark.parametrize(
    "chain", [["mpirun.openmpi"], ["mpiexec.hydra", "hydra_pmi_proxy"], ["mpirun", "slurmstepd"], ["bash"]]
)
def test_mpirun_in_each_task_of_a_step_is_warned_of(run_unchecked, runscripts, first, home, chain):
    """As with `srun -n4 mpirun -np 4`; mpirun's daemons are a step as well, which it is not in."""
    first.update(OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_SIZE="4", PMIX_NAMESPACE="1")
    line = f"{runscripts}/conda-python-distributed --dry-run; true"
    for name in reversed(chain):
        (home / name).symlink_to("/bin/bash")
        line = f"{home / name} -c {shlex.quote(line)}; true"
    message = f"if each of the 4 tasks of this Slurm step runs {chain[0]}, each starts a world of its own."
    for rank, is_warned in (("0", chain[-1] not in ("slurmstepd", "bash")), ("1", False)):
        env = {**first, "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_LOCAL_RANK": rank}
        done = run_unchecked("/bin/bash", "-c", line, env=env, start_new_session=True)
        assert (message in done.stderr, "WORLD_SIZE=4\n" in done.stdout) == (is_warned, True), done.stderr


def test_a_line_of_each_rank_has_what_was_decided_and_why(run_unchecked, step):
    env = {**step, "PYTORCH_LAUNCH_VERBOSE": "1", "MASTER_PORT": "4000"}
    done = run_unchecked("conda-python-distributed", "--dry-run", env=env)
    world = "rank 3 of 4, local rank 1 of 2, node rank 1, master nid001002:4000, from Slurm step 7.0"
    assert done.stderr.startswith(f"nid001003: {world}; ") and done.stderr.count("\n") == 1
    others = r"; CPUs [\d,-]+.*, OMP_NUM_THREADS \d+; Python of the module; exported"
    assert re.search(f"{others} before: MASTER_PORT\n$", done.stderr)


# ddp-env


@pytest.mark.parametrize(("shell", "code"), [("bash", "source <(ddp-env)"), ("sh", 'eval "$(ddp-env)"')])
def test_ddp_env_gives_a_shell_what_python_would_get(run, step, runscripts, home, shell, code):
    """Also where values need quotes, as the directories of the caches here, and what is unset."""
    step.update(PYTHONHOME="/absent", TMPDIR=f"{home}/a b'c\"$HOME`id`\\n*\n;", PATH=f"{runscripts}:{PATH}")
    Path(step["TMPDIR"]).mkdir()
    sourced = json.loads(run(shell, "-c", f'{code} && exec python -c "$0"', SHOW_ENVIRONMENT, env=step))
    launched = json.loads(run("conda-python-distributed", "-c", SHOW_ENVIRONMENT, env=step))
    for env in (sourced, launched):
        for name in ("_", "PWD", "SHLVL"):
            env.pop(name, None)
    assert sourced == launched


@pytest.mark.parametrize("command", ["source <({0}/ddp-env)", 'eval "$({0}/ddp-env)"'])
@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"SLURM_STEP_NODELIST": "nid[001002-"}, 2, "ddp-env: SLURM_STEP_NODELIST: "),
        ({"PATH": "/absent"}, 127, "ddp-env: python3 not found on PATH"),  # before any Python
    ],
)
def test_a_failure_of_ddp_env_is_the_status_of_source_and_the_shell_goes_on(
    run_unchecked, step, runscripts, command, changes, status, message
):
    code = f"{command.format(runscripts)} && echo started || echo $?"
    done = run_unchecked("/bin/bash", "-c", code, env={**step, **changes})
    assert done.stdout == f"{status}\n"
    assert done.stderr.startswith(message)

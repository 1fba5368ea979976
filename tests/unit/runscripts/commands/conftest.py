"""Starts commands as users do: real bash, real Python, a synthetic environment."""

import subprocess
import sys

import pytest
from command_environment import COMMANDS, PATH
from programs import program
from variables import changed, variables


@pytest.fixture
def home(tmp_path):
    """The working directory of the commands, and beside it their `TMPDIR`."""
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "home"


@pytest.fixture
def run_unchecked(runscripts, home):
    """Run a command of `runscripts`, or another program, in exactly the given environment."""

    def run(command, *arguments, env=None, **options):
        program = str(runscripts / command) if command in (*COMMANDS, "torchrun", "list-packages") else command
        env = {"PATH": PATH, "TMPDIR": str(home.parent / "tmp"), **(env or {})}
        options = {"cwd": home, "capture_output": True, "text": True, "timeout": 300, "check": False, **options}
        return subprocess.run([program, *arguments], env=env, **options)

    return run


@pytest.fixture
def run(run_unchecked):
    """The same for a command that succeeds in silence; returns its output."""

    def checked(*arguments, **options):
        done = run_unchecked(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return checked


@pytest.fixture(params=["conda-python-simple", "conda-python-distributed"])
def either(request):
    """What holds for both commands that run Python."""
    return request.param


@pytest.fixture
def worker():
    """What torchrun exports to its first worker of four."""
    return variables(
        "TORCHELASTIC_RUN_ID=none RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=node7 "
        "MASTER_PORT=40001"
    )


@pytest.fixture
def agent(step, home):
    """A task that is alone on its node, and a python that shows how torchrun would be started."""
    show = "import json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    program(home / "python", show, sys.executable)
    alone = "SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0"
    return changed(step, alone, PATH=f"{home}:{PATH}")

"""DeepSpeed, torchtitan, Ray Train and submitit: the commands of docs/frameworks.md, with programs in frameworks/."""

import re
import shutil
from pathlib import Path

import pytest
from framework_page import commands

pytestmark = [pytest.mark.testbed]

PROGRAMS = Path(__file__).parent / "frameworks"
#: A loss that falls, as the programs print it.
LOSSES = r"(\d+\.\d+) -> (\d+\.\d+)"
#: Downloads of several hundred megabytes, packages that are built, and ranks that import for long on few cores.
LONG = 900


class User:
    """A user's shell with a module loaded, in a directory with a program."""

    def __init__(self, testbed, load, directory, *, venv):
        self.testbed = testbed
        self.load = load
        self.directory = directory
        self.venv = venv

    def line(self, command):
        """Return a command of the page for this module."""
        if not self.venv:
            return command
        command = command.replace("singularity exec $SIF ", "")
        return re.sub(r"^pip install ", "pip install --user ", command)

    def install(self, section):
        """Run the commands that install the packages of a section."""
        lines = "\n".join(self.line(command) for command in commands(section, "Install"))
        self.testbed.run(f"{self.load}\nset -e\n{lines}", cwd=self.directory, timeout=LONG)

    def program(self, name, copy="train.py"):
        """Copy a program to the name that the page gives it."""
        shutil.copy(PROGRAMS / name, self.directory / copy)

    def run(self, script):
        """Run a script that must succeed; return its output."""
        return self.testbed.run(f"{self.load}\nset -e\n{self.line(script)}", cwd=self.directory, timeout=LONG)

    def run_unchecked(self, script):
        """Run a script; return the process."""
        return self.testbed.run_unchecked(f"{self.load}\n{self.line(script)}", cwd=self.directory, timeout=LONG)


@pytest.fixture
def on_venv(testbed, venv, work):
    """A user of the venv module, with packages of their own."""
    return User(testbed, f"module load {venv}\nexport PYTHONUSERBASE={work}/base PATH={work}/base/bin:$PATH",
                work, venv=True)  # fmt: skip


@pytest.fixture
def on_container(testbed, installation, work):
    """A user of a container module, with unused user-software."""
    return User(testbed, installation.script(""), work, venv=False)


@pytest.fixture(params=["container", "venv"])
def user(request):
    """A user of each of the two modules."""
    return request.getfixturevalue(f"on_{request.param}")


def falls(losses):
    """Return whether a training's last loss is well below its first."""
    first, last = map(float, losses)
    return last < 0.8 * first


@pytest.mark.thorough
def test_deepspeed_trains_in_all_stages(user):
    user.install("DeepSpeed")
    user.program("deepspeed_train.py")
    (launch,) = commands("DeepSpeed", "Launch")
    for stage in (1, 2, 3):
        output = user.run(f"{launch} {stage}")
        ranks = re.findall(rf"^rank (\d) of 4, sum of ranks 6, {LOSSES}$", output, re.MULTILINE)
        assert sorted(rank for rank, *_ in ranks) == ["0", "1", "2", "3"]
        assert all(falls(losses) for _, *losses in ranks)


@pytest.mark.thorough
def test_ray_train_trains_on_the_nodes_of_a_step(user):
    user.install("Ray Train")
    user.program("ray_train.py")
    (launch,) = commands("Ray Train", "Launch")
    output = user.run(f"{launch} 4")
    (losses,) = re.findall(rf"^world 4, sum of ranks 6 on 2 Ray nodes, {LOSSES}, 1 thread$", output, re.MULTILINE)
    assert falls(losses)
    (user.directory / "train.py").write_text("import ray\nray.init()\nexit(int(ray.cluster_resources()['CPU']))")
    assert user.run_unchecked(launch).returncode == 4  # all nodes are there when the script starts


@pytest.mark.thorough
def test_submitit_trains_as_ranks_of_the_launcher(user):
    user.install("submitit")
    user.program("submitted.py", "train.py")
    (user.directory / "submit.py").write_text(
        "import sys\nimport submitit, train\n"
        'executor = submitit.AutoExecutor("log", slurm_python="conda-python-distributed")\n'
        "executor.update_parameters(nodes=2, tasks_per_node=2, timeout_min=5)\n"
        "job = executor.submit(train.train, 30)\nprint(*job.results(), sep='\\n')\n"
    )
    (launch,) = commands("submitit", "Launch")
    output = user.run(launch)
    results = [re.findall(r"[\d.]+", line) for line in output.splitlines() if line.startswith("(")]
    assert [result[:2] for result in results] == [[str(rank), "6"] for rank in range(4)]
    assert all(falls(losses) for _, _, *losses in results)

"""Lightning, accelerate, the Trainer and scripts for torchrun: the lines of docs/frameworks.md."""

import re
import secrets

import pytest
from framework_page import commands

pytestmark = [pytest.mark.testbed, pytest.mark.thorough, pytest.mark.early]

#: Framework to the program that replaces train.py.
PROGRAMS = {
    "Lightning": "lightning_train.py",
    "accelerate": "accelerate_train.py",
    "Trainer of transformers": "trainer_train.py",
    "Scripts for torchrun": "torchrun_train.py",
}


def ranks(output):
    """Return (rank, size, weights, batches) of each rank, by rank."""
    return sorted(re.findall(r"^rank (\d) of (\d), weights (\S+), (\d+) batches$", output, re.MULTILINE))


def is_one_world(printed, size):
    """Return whether the ranks of one world trained: they share the data and end with the same weights."""
    places = [(rank, of, batches) for rank, of, _, batches in printed]
    expected = [(str(rank), str(size), str(16 // size)) for rank in range(size)]
    return places == expected and len({weights for _, _, weights, _ in printed}) == 1


@pytest.mark.parametrize("framework", PROGRAMS)
def test_a_framework_trains_with_every_line_of_its_section(user, framework):
    if framework != "Scripts for torchrun":
        user.install(framework)
    user.program(PROGRAMS[framework])
    for line in commands(framework, "Launch"):
        assert is_one_world(ranks(user.run(line)), 4), line


def test_lightning_rejects_n_alone_and_trains_with_the_plugin_or_another_job_name(user):
    user.install("Lightning")
    user.program("lightning_train.py")
    (named,) = commands("Lightning", "Without a change of the script, name the job")
    assert is_one_world(ranks(user.run(named)), 4)
    alone = named.replace(" --job-name=interactive", "")
    result = user.run_unchecked(alone)
    assert result.returncode != 0
    assert "You set `--ntasks=4` in your SLURM bash script, but this variable is not supported" in result.stderr
    script = user.directory / "train.py"
    imported, trainer = commands("Lightning", "Lightning read the launcher's variables")
    plugins = f"plugins={trainer.partition('plugins=')[2].removesuffix(')')},"
    script.write_text(f"{imported}\n{script.read_text().replace('max_epochs=1,', f'max_epochs=1, {plugins}')}")
    assert is_one_world(ranks(user.run(alone)), 4)


def test_accelerate_launch_on_cpus_is_a_world_of_one_on_each_machine_unless_it_runs_as_a_rank(user):
    user.install("accelerate")
    user.program("accelerate_train.py")
    launcher = "-m accelerate.commands.launch --cpu"
    port = 20000 + secrets.randbelow(10000)
    machines = f"--num_machines=2 --num_processes=2 --main_process_port={port}"
    apart = user.run(
        f"srun -N2 --ntasks-per-node=1 singularity exec $SIF bash -c "
        f"'conda-python-simple {launcher} {machines} --machine_rank=$SLURM_NODEID --main_process_ip=nid001001 train.py'"
    )
    assert [rank[:2] for rank in ranks(apart)] == [("0", "1")] * 2
    (line,) = commands("accelerate", "On CPUs, to use options that only `accelerate launch` has, start it as a rank")
    assert is_one_world(ranks(user.run(line)), 4)

"""Ranks of every launcher meet, also those of several worlds on the same nodes."""

import pytest
from meeting import PROBE, ranks
from optional_packages import need

from testbed.stand_ins.systems import HERE as STAND_INS

pytestmark = [pytest.mark.testbed, pytest.mark.early]

#: A job on two nodes with two slots each, which mpirun reads from Slurm.
JOB = "salloc --quiet -N2 -w nid001001,nid001002 --ntasks-per-node=2 "


@pytest.fixture
def meet(testbed, venv, work):
    """A function that runs a script in which ranks start probe.py; it returns the words of each rank's line."""
    (work / "probe.py").write_text(PROBE)

    def run(script, module=venv):
        return ranks(testbed.run(f"module load {module}\n{script}", cwd=work))

    return run


@pytest.mark.parametrize(("package", "two"), [("openmpi-bin", "--map-by ppr:1:node"), ("mpich", "-ppn 1")])
def test_mpirun_in_a_job_starts_ranks_in_the_image(meet, container, package, two):
    line = f"{JOB} {need(package)} -n 2 {two} singularity exec $SIF conda-python-distributed probe.py"
    assert [rank[:4] for rank in meet(line, container)] == [["2", "of", "2", "nid001001"]] * 2


@pytest.mark.parametrize("package", ["openmpi-bin", "mpich"])
def test_mpirun_on_one_host_needs_no_job(meet, package):
    line = f"{need(package)} -n 2 conda-python-distributed probe.py"
    found = meet(f"export OMPI_MCA_rmaps_base_oversubscribe=1\n{line}")
    assert [rank[:4] for rank in found] == [["2", "of", "2", "127.0.0.1"]] * 2
    assert len({rank[4] for rank in found}) == 1


@pytest.mark.parametrize(("package", "two"), [("openmpi-bin", "--map-by ppr:2:node"), ("mpich", "-ppn 2")])
def test_mpirun_can_use_fewer_nodes_than_the_job_has(meet, package, two):
    job = "salloc --quiet -N3 --ntasks-per-node=2"
    found = meet(f"{job} {need(package)} -n 4 {two} conda-python-distributed probe.py")
    assert [rank[:3] for rank in found] == [["4", "of", "4"]] * 4


def test_jobs_and_steps_on_the_same_nodes_have_separate_worlds(testbed, venv, work):
    (work / "probe.py").write_text(PROBE)
    launch = "conda-python-distributed probe.py"
    output = testbed.run(
        f"""module load {venv}
WHICH=job srun -N2 -n2 -w nid001001,nid001002 {launch} & job=$!
salloc --quiet -N2 -n4 -w nid001001,nid001002 bash -c '
WHICH=first srun --overlap -n3 -N2 {launch} & first=$!
WHICH=second srun --overlap -n2 -N2 {launch} & second=$!
wait $first && wait $second' & steps=$!
wait $job && wait $steps""",
        cwd=work,
    )
    ports = set()
    for world, size in {"first": 3, "job": 2, "second": 2}.items():
        found = ranks(output, world)
        assert [rank[:4] for rank in found] == [[f"{size}", "of", f"{size}", "nid001001"]] * size
        ports.update(rank[4] for rank in found)
    assert len(ports) == 3


def test_a_step_on_another_node_than_the_jobs_first_has_that_node_as_master(meet):
    found = meet(f"{JOB} srun -N1 -n2 -w nid001002 conda-python-distributed probe.py")
    assert [rank[:4] for rank in found] == [["2", "of", "2", "nid001002"]] * 2


@pytest.mark.parametrize("launcher", ["flux", "pals"])
def test_tasks_of_flux_and_of_pals_meet_by_their_own_variables(meet, launcher):
    """The stand-ins start tasks with the documented variables of these launchers, and none of Slurm's."""
    options = "-N2 --ntasks-per-node=2 -w nid001001,nid001002"
    found = meet(f"PATH={STAND_INS}:$PATH srun {options} task-of {launcher} conda-python-distributed probe.py")
    assert [rank[:4] for rank in found] == [["4", "of", "4", "nid001001"]] * 4
    assert len({rank[4] for rank in found}) == 1

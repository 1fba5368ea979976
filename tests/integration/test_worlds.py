"""The same training with every launcher, and several worlds on the same nodes."""

import re

import pytest

from testbed.packages import find_optional
from testbed.stand_ins.systems import HERE as STAND_INS

pytestmark = pytest.mark.testbed

#: A job on two nodes with two slots each, which mpirun reads from Slurm.
JOB = "salloc --quiet -N2 -w nid001001,nid001002 --ntasks-per-node=2 "
#: With generated digits, which train in seconds.
TRAINING = "$PAYLOAD/mnist_ddp.py --seed 1"
#: mpirun requires these variables of root, who runs the tests in a container.
AS_ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
#: Meets as torch's ranks do, where rank 0 listens, without torch's import of 2 CPU seconds: prints how many different
#: ranks there are, with address and port of the rendezvous. What trains below proves that torch does the same.
PROBE = """
import os, socket, time
rank, size, port = (int(os.environ[name]) for name in ('RANK', 'WORLD_SIZE', 'MASTER_PORT'))
if rank == 0:
    with socket.create_server(('', port)) as server:
        others = [server.accept()[0] for _ in range(size - 1)]
        found = len({0} | {ord(other.recv(1)) for other in others})
        time.sleep(1)  # all worlds at the same time
        for other in others:
            other.sendall(bytes([found]))
else:
    end = time.monotonic() + 600
    while True:
        try:
            meeting = socket.create_connection((os.environ['MASTER_ADDR'], port), timeout=600)
            break
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    meeting.sendall(bytes([rank]))
    found = ord(meeting.recv(1))
line = f"{os.environ['WHICH']} {found} of {size} {os.environ['MASTER_ADDR']} {port}\\n"
os.write(1, line.encode())  # in one write: launchers mix the partial writes of ranks
"""


def launcher(package):
    """Return the command of an optional package, or skip the test."""
    command = find_optional(package)
    if command is None:
        pytest.skip(f"{package} is not installed (./run-tests does that where it may install packages)")
    return command


def accuracy(output, size):
    """Return the test accuracy in percent of a training with `size` ranks."""
    assert f"world size {size}," in output
    return float(re.search(r"test accuracy: ([\d.]+) %", output)[1])


@pytest.fixture(scope="session")
def alone(testbed, venv):
    """The accuracy of one process without a launcher."""
    output = testbed.run(f"module load {venv}\nexport OMP_NUM_THREADS=1\nconda-python-distributed {TRAINING}")
    return accuracy(output, 1)


#: Name -> line, which starts 4 ranks, or those of FEWER.
LINES = {
    "srun": "srun -N2 --ntasks-per-node=2 {enter}conda-python-distributed {training}",
    "Open MPI": AS_ROOT + JOB + "{open_mpi} -np 4 --map-by ppr:2:node {enter}conda-python-distributed {training}",
    "MPICH": JOB + "{mpich} -n 4 -ppn 2 {enter}conda-python-distributed {training}",
    "torchrun under srun": "srun -N2 -n2 {enter}torchrun-distributed --nproc-per-node=2 {training}",
    "torchrun under Open MPI": AS_ROOT
    + JOB
    + "{open_mpi} -np 2 --map-by ppr:1:node {enter}torchrun-distributed --nproc-per-node=2 {training}",
    "torchrun alone": "{enter}torchrun --nproc-per-node=2 {training}",
    "ddp-env": "srun -N2 --ntasks-per-node=1 {enter}bash -c 'source <(ddp-env) && exec python {training}'",
}
FEWER = {LINES[name]: 2 for name in ("torchrun alone", "ddp-env")}

#: Launchers that reach image or venv in the same way as another one, or that job scripts, test_training.py and
#: test_ends.py use.
ALIKE = {
    "container": ("srun", "MPICH", "torchrun under srun", "torchrun under Open MPI", "torchrun alone", "ddp-env"),
    "venv": ("srun", "Open MPI", "MPICH", "torchrun under srun", "torchrun under Open MPI"),
}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        pytest.param(module, line, id=f"{module}-{name}", marks=[pytest.mark.thorough] * (name in ALIKE[module]))
        for module in ALIKE
        for name, line in LINES.items()
    ],
    indirect=["module"],
)
def test_every_launcher_trains_to_the_same_result(testbed, module, enter, alone, line):
    mpi = {
        name: launcher(package)
        for name, package in [("open_mpi", "openmpi-bin"), ("mpich", "mpich")]
        if f"{{{name}}}" in line
    }
    output = testbed.run(f"module load {module}\n" + line.format(enter=enter, training=TRAINING, **mpi))
    assert accuracy(output, FEWER.get(line, 4)) == pytest.approx(alone, abs=0.15)  # one image of 1000 is 0.1 %


@pytest.mark.parametrize("package", ["openmpi-bin", "mpich"])
def test_mpirun_on_one_host_needs_no_job(testbed, venv, work, package):
    (work / "probe.py").write_text(PROBE)
    command = launcher(package)
    output = testbed.run(
        f"module load {venv}\n{AS_ROOT}export WHICH=mpi OMPI_MCA_rmaps_base_oversubscribe=1\n"
        f"{command} -n 2 conda-python-distributed probe.py",
        cwd=work,
    )
    ranks = [line.split() for line in output.splitlines()]
    assert [rank[:5] for rank in ranks] == [["mpi", "2", "of", "2", "127.0.0.1"]] * 2
    assert len({rank[5] for rank in ranks}) == 1


@pytest.mark.parametrize("package", ["openmpi-bin", "mpich"])
def test_mpirun_can_use_fewer_nodes_than_the_job_has(testbed, venv, work, package):
    (work / "probe.py").write_text(PROBE)
    output = testbed.run(
        f"module load {venv}\n{AS_ROOT}export WHICH=part\n"
        f"salloc --quiet -N3 --ntasks-per-node=1 {launcher(package)} -n 2 conda-python-distributed probe.py",
        cwd=work,
    )
    ranks = [line.split() for line in output.splitlines()]
    assert [rank[:4] for rank in ranks] == [["part", "2", "of", "2"]] * 2


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
    ranks = [line.split() for line in output.splitlines()]
    worlds = {"first": 3, "job": 2, "second": 2}
    assert sorted(rank[:4] for rank in ranks) == [
        [world, f"{size}", "of", f"{size}"] for world, size in worlds.items() for _ in range(size)
    ]
    assert {rank[4] for rank in ranks} == {"nid001001"}
    assert len({rank[5] for rank in ranks}) == 3


def test_a_step_on_another_node_than_the_jobs_first_has_that_node_as_master(testbed, venv, work):
    (work / "probe.py").write_text(PROBE)
    output = testbed.run(
        f"module load {venv}\nexport WHICH=step\n{JOB} srun -N1 -n2 -w nid001002 conda-python-distributed probe.py",
        cwd=work,
    )
    assert [line.split()[1:5] for line in output.splitlines()] == [["2", "of", "2", "nid001002"]] * 2


@pytest.mark.parametrize("line", ["flux run", "mpiexec-of-pals"])
def test_tasks_of_flux_and_of_pals_meet_by_their_own_variables(testbed, venv, work, line):
    """The stand-ins start tasks with the documented variables of these launchers, and none of Slurm's."""
    (work / "probe.py").write_text(PROBE)
    output = testbed.run(
        f"module load {venv}\nexport WHICH=world PATH={STAND_INS}:$PATH\n"
        f"{line} -N2 --ntasks-per-node=2 -w nid001001,nid001002 -- conda-python-distributed probe.py",
        cwd=work,
    )
    ranks = [line.split() for line in output.splitlines()]
    assert [rank[:5] for rank in ranks] == [["world", "4", "of", "4", "nid001001"]] * 4
    assert len({rank[5] for rank in ranks}) == 1

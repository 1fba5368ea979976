"""How a step ends: signals, exit statuses, ranks that die or hang, workers that are restarted."""

import json
import re

import pytest

pytestmark = pytest.mark.testbed

TWO_NODES = "srun -N2 -n2 -w nid001001,nid001002 "
#: Counts the signals that Python receives until the file `enough` exists; then exits with status 7.
COUNTING = """
import os, signal, sys, time
received = []
for name in ('SIGTERM', 'SIGUSR1'):
    signal.signal(getattr(signal, name), lambda number, _: received.append(signal.Signals(number).name))
open(f"ready.{os.environ['RANK']}", 'w').close()
while not (received and os.path.exists('enough')):
    time.sleep(0.1)
time.sleep(1)  # for a possible second signal
os.write(1, f"received {' '.join(received)}\\n".encode())
sys.exit(7)
"""
#: Rank 1 kills or stops itself after the process group is initialized. The import of torch takes the ranks of a busy
#: machine more than --timeout, one after the other.
STRUCK = """
import os, runpy, signal, sys, threading, time, torch
open(f"imported.{os.environ['RANK']}", 'w').close()
while not (os.path.exists('imported.0') and os.path.exists('imported.1')):
    time.sleep(0.1)
def strike():
    while not getattr(sys.modules.get('torch.distributed'), 'is_initialized', bool)():  # bool() is False
        time.sleep(0.2)
    time.sleep(3)
    os.kill(os.getpid(), getattr(signal, os.environ['STRIKE']))
if os.environ['RANK'] == '1':
    threading.Thread(target=strike, daemon=True).start()
sys.argv[0] = os.environ['PAYLOAD'] + '/mnist_ddp.py'
sys.path.insert(0, os.environ['PAYLOAD'])
runpy.run_path(sys.argv[0], run_name='__main__')
"""
#: Rank 1 kills itself in the first attempt.
ELASTIC = """
import os, signal, time, torch, torch.distributed as dist
dist.init_process_group('gloo')
total = torch.ones(1)
dist.all_reduce(total)
restarts = int(os.environ['TORCHELASTIC_RESTART_COUNT'])
if restarts == 0 and os.environ['RANK'] == '1':
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(total)
os.write(1, f"{restarts} {int(total)}\\n".encode())
dist.destroy_process_group()
time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
"""
#: The rank of the first argument fails after a collective, in the way of the second; the others wait for it. In a
#: function: gloo's threads may abort an interpreter that ends with its module-level variables (torch 2.13).
FAILING = """
import os, signal, sys, time, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    dist.init_process_group('gloo')
    rank, total = dist.get_rank(), torch.ones(1)
    print(f'rank {rank} trains')
    dist.all_reduce(total)
    if rank == int(sys.argv[1]):
        if sys.argv[2] == 'KILL':
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError('bad batch')
    try:
        dist.all_reduce(total)
    finally:
        time.sleep(1)  # otherwise it may end before the rank that it has lost
main()
"""


@pytest.mark.parametrize(
    ("module", "signal"),
    [
        ("container", "TERM"),
        ("venv", "USR1"),
        pytest.param("container", "USR1", marks=pytest.mark.thorough),
        pytest.param("venv", "TERM", marks=pytest.mark.thorough),
    ],
    indirect=["module"],
)
def test_python_receives_a_signal_once_and_the_step_has_pythons_exit_status(testbed, module, enter, work, signal):
    (work / "counting.py").write_text(COUNTING)
    result = testbed.run_unchecked(
        f"""module load {module}
export SLURM_KILL_BAD_EXIT=0  # every rank prints what it received
{TWO_NODES} --job-name=counting-{signal} {enter}conda-python-distributed counting.py & step=$!
until [ -e ready.0 ] && [ -e ready.1 ]; do sleep 0.1; done
scancel --signal={signal} --name=counting-{signal} --user=$(id -un)
sleep 1
touch enough
wait $step""",
        cwd=work,
    )
    assert result.returncode == 7
    received = [line.split()[1:] for line in result.stdout.splitlines()]
    if enter:
        # This cluster's proctrack/linuxproc signals every process of a step, so that Apptainer's parent process
        # forwards a second one; proctrack/cgroup, which clusters have, signals the tasks alone.
        received = [signals[:1] for signals in received]
    assert received == [[f"SIG{signal}"]] * 2, result.stderr


@pytest.mark.parametrize(
    ("module", "strike"),
    [
        ("container", "SIGKILL"),
        ("venv", "SIGSTOP"),
        pytest.param("container", "SIGSTOP", marks=pytest.mark.thorough),
        pytest.param("venv", "SIGKILL", marks=pytest.mark.thorough),
    ],
    indirect=["module"],
)
def test_a_rank_that_dies_or_stops_answering_ends_the_step(testbed, module, enter, dataset, work, strike):
    """A hanging rank ends it after the payload's --timeout, a dead one at once; by default both take an hour."""
    (work / "struck.py").write_text(STRUCK)
    result = testbed.run_unchecked(
        f"""module load {module} {dataset}
STRIKE={strike} {TWO_NODES} {enter}conda-python-distributed struck.py --epochs 1000000 --timeout 10""",
        cwd=work,
    )
    assert result.returncode != 0
    assert "world size 2" in result.stdout


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_worker_of_torchrun_that_is_killed_is_started_again_with_its_world(testbed, module, enter, work):
    (work / "elastic.py").write_text(ELASTIC)
    output = testbed.run(
        f"""module load {module}
srun -N2 -n2 {enter}torchrun-distributed --nproc-per-node=1 --max-restarts=1 elastic.py""",
        cwd=work,
    )
    restarts, totals = zip(*(line.split() for line in output.splitlines()))
    assert totals == ("4",) * 2
    assert max(restarts) == "1"  # an agent counts only restarts that its own workers caused


def test_torchrun_with_several_tasks_on_a_node_is_refused_with_the_remedy(testbed, venv):
    result = testbed.run_unchecked(f"module load {venv}\nsrun -N1 -n2 torchrun-distributed train.py")
    assert result.returncode in (2, 143)  # 143: srun ended this task because of the other
    assert "has 2 tasks on nid00100" in result.stderr
    assert "srun -N1 -n1" in result.stderr


@pytest.mark.parametrize(
    ("module", "how", "kill", "statuses"),
    # 134: gloo's threads may abort a rank that has lost another one (torch 2.13); srun ends with the highest status
    [
        ("venv", "raise", 0, "1 134"),
        pytest.param("container", "KILL", 1, "137 143", marks=pytest.mark.thorough),
    ],
    indirect=["module"],
)
def test_srun_writes_a_log_for_each_rank_and_names_the_first_that_failed(
    testbed, module, enter, work, how, kill, statuses
):
    """As docs/logs.md has it. If srun does not end the others (0), they fail too, as they lose rank 2."""
    (work / "failing.py").write_text(FAILING)
    result = testbed.run_unchecked(
        f"""module load {module}
export SLURM_KILL_BAD_EXIT={kill}
mkdir logs errors
srun -N2 -n3 --output=logs/%j.%s.%t bash -c \
    'TORCHELASTIC_ERROR_FILE=errors/$SLURM_PROCID.json exec {enter}conda-python-distributed -u failing.py 2 {how}'
echo "status $?" """,
        cwd=work,
    )
    assert result.stdout.split()[0] == "status" and result.stdout.split()[1] in statuses.split(), result.stderr
    reports = [line for line in result.stderr.splitlines() if line.startswith("srun: error: ")]
    assert re.match(r"srun: error: nid\d+: task 2: (Exited with exit code (1|137)|Killed)$", reports[0]), reports
    logs = {path.name.rpartition(".")[2]: path.read_text() for path in (work / "logs").iterdir()}
    assert sorted(logs) == ["0", "1", "2"]
    assert all(f"rank {rank} trains\n" in text for rank, text in logs.items())
    error = work / "errors" / "2.json"
    if how == "raise":
        assert logs["2"].endswith("[rank2]: ValueError: bad batch\n")
        assert json.loads(error.read_text())["message"]["message"] == "ValueError: bad batch"
    else:
        assert not error.exists()

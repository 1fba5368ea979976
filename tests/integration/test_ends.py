"""How a step ends: signals, exit statuses, ranks that die, workers that are restarted."""

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
#: Rank 1 kills itself in the first attempt; the other waits. Without torch, whose import takes 2 CPU seconds.
ELASTIC = """
import os, signal, time
restarts, rank, size = (os.environ[name] for name in ('TORCHELASTIC_RESTART_COUNT', 'RANK', 'WORLD_SIZE'))
if not os.path.exists(f'began.{rank}'):
    open(f'began.{rank}', 'w').close()
    while rank == '0' or not os.path.exists('began.0'):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)
os.write(1, f"{restarts} {rank} of {size}\\n".encode())
"""
#: Rank 1 fails in the way of its argument after rank 0 has begun.
FAILING = """
import os, signal, sys, time
rank = os.environ['RANK']
print(f'rank {rank} trains')
open(f'began.{rank}', 'w').close()
while not (os.path.exists('began.0') and os.path.exists('began.1')):
    time.sleep(0.1)
if rank == '0':
    time.sleep(600)
if sys.argv[1] == 'KILL':
    os.kill(os.getpid(), signal.SIGKILL)
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError('bad batch')
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


@pytest.mark.parametrize("module", [pytest.param("container", marks=pytest.mark.thorough), "venv"], indirect=True)
def test_a_worker_of_torchrun_that_is_killed_is_started_again_with_its_world(testbed, module, enter, work):
    (work / "elastic.py").write_text(ELASTIC)
    output = testbed.run(
        f"""module load {module}
srun -N2 -n2 {enter}torchrun-distributed --nproc-per-node=1 --max-restarts=1 elastic.py""",
        cwd=work,
    )
    restarts, *ranks = zip(*(line.split(maxsplit=1) for line in output.splitlines()))
    assert sorted(*ranks) == ["0 of 2", "1 of 2"]
    assert max(restarts) == "1"  # an agent counts only restarts that its own workers caused


@pytest.mark.parametrize(
    ("module", "how", "status"),
    [("venv", "raise", 1), ("container", "KILL", 137)],
    indirect=["module"],
)
def test_srun_writes_a_log_for_each_rank_names_the_first_that_failed_and_ends_the_others(
    testbed, module, enter, work, how, status
):
    """As docs/logs.md has it."""
    (work / "failing.py").write_text(FAILING)
    result = testbed.run_unchecked(
        f"""module load {module}
mkdir logs errors
{TWO_NODES} --output=logs/%j.%s.%t bash -c \
    'TORCHELASTIC_ERROR_FILE=errors/$SLURM_PROCID.json exec {enter}conda-python-distributed -u failing.py {how}'""",
        cwd=work,
    )
    assert result.returncode in (status, 143), result.stderr  # 143: of the rank that srun ended
    reports = [line for line in result.stderr.splitlines() if line.startswith("srun: error: ")]
    assert re.match(r"srun: error: nid001002: task 1: (Exited with exit code (1|137)|Killed)$", reports[0]), reports
    logs = {path.name.rpartition(".")[2]: path.read_text() for path in (work / "logs").iterdir()}
    assert sorted(logs) == ["0", "1"]
    assert all(f"rank {rank} trains\n" in text for rank, text in logs.items())
    error = work / "errors" / "1.json"
    if how == "raise":
        assert "ValueError: bad batch\n" in logs["1"]
        assert json.loads(error.read_text())["message"]["message"] == "ValueError: bad batch"
    else:
        assert not error.exists()

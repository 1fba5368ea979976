"""pytorch-run: a training continues on the spare node and reaches the weights of an undisturbed run."""

import os
import signal
import subprocess

import pytest
import torch
from failing_nodes import kill_node, kill_slurmd, kill_slurmd_and_report, own_cluster, slurmd
from waiting import wait_for

from testbed import shell

pytestmark = [pytest.mark.testbed, pytest.mark.early]

TRAINING = "$PAYLOAD/mnist_ddp.py --lr 0.001 --batch-size 20 --data . "


@pytest.fixture
def cluster(request, testbed, work):
    """A cluster of four nodes, which reports a node as down within 6 s, or the seconds that a test asks for."""
    with own_cluster(work / "cluster", slurmd_timeout=getattr(request, "param", 6)) as layout:
        if os.readlink(f"/proc/{slurmd(layout, 'nid001001')}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            pytest.skip("this machine denies namespaces, by which a node's processes are found")
        yield layout
        for process in Session.started:  # of a test that failed
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        Session.started.clear()


class Session:
    """A script of a user with an allocation on the cluster, and its output."""

    started = []

    def __init__(self, testbed, cluster, module, directory, script):
        settings = f"export SLURM_CONF={cluster.slurm_conf} OMP_NUM_THREADS=1\nmodule load {module}"
        command = ["bash", "-c", f"{shell.program_code(testbed.layout)}\n{settings}\n{script}"]
        self.log = directory / "output"
        with self.log.open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.process = subprocess.Popen(command, cwd=directory, start_new_session=True, **streams)
        self.started.append(self.process)

    def output(self):
        return self.log.read_text(errors="replace")

    def wait_for(self, text, times=1):
        """Wait until `text` is in the output so many times; fail if the script ends before."""
        wait_for(lambda: self.output().count(text) >= times or self.process.poll() is not None, report=self.output)
        assert self.output().count(text) >= times, self.output()

    def end(self):
        """Wait until the session ends; return its exit status."""
        return self.process.wait(timeout=1200)


#: Ranks without torch, whose import takes 2 CPU seconds: those of the first run wait until the file `continue` exists.
WAITING = """
import os, time
begun = f"begun.{os.environ['RANK']}"
waits = not os.path.exists(begun)
open(begun, 'w').close()
os.write(1, b'a rank has begun\\n')
while waits and not os.path.exists('continue'):
    time.sleep(0.1)
"""


@pytest.mark.parametrize("cluster", [300], indirect=True)  # the test reports the node itself
def test_a_node_that_slurm_reports_as_down_is_replaced(testbed, cluster, venv, work):
    (work / "waiting.py").write_text(WAITING)
    line = "salloc --no-kill -N3 pytorch-run --no-preflight --spare 1 -- conda-python-distributed waiting.py"
    session = Session(testbed, cluster, venv, work, line)
    session.wait_for("a rank has begun", times=2)
    kill_slurmd_and_report(cluster, "nid001001")
    session.wait_for("run 2 on ")
    (work / "continue").touch()
    assert session.end() == 0, session.output()
    assert "pytorch-run: nid001001 failed: srun: Node failure" in session.output()
    assert "pytorch-run: run 2 on nid001002,nid001003, 0 spare" in session.output()
    assert session.output().count("a rank has begun") == 4


#: Hangs once, after a checkpoint: rank 1 does not come to a collective, or all ranks sleep; or it writes no lines.
#: Only the first of them imports torch, which takes 2 CPU seconds.
SILENT = """
import os, sys, threading, time
rank, kind = os.environ['RANK'], sys.argv[1]
begun = threading.Event()
def write():  # while torch is imported
    while not begun.wait(0.5):
        os.write(2, b'.')
if kind == 'collective':
    threading.Thread(target=write, daemon=True).start()
    import torch, torch.distributed as dist
    dist.init_process_group('gloo')
    begun.set()
is_first = not os.path.exists(f'{kind}.{rank}')
open(f'{kind}.{rank}', 'w').close()
for second in range(6 if kind == 'writes' else 0):
    os.write(2, b'.')
    time.sleep(5)
if is_first and (kind == 'sleeps' or kind == 'collective' and rank == '1'):
    time.sleep(3600)
if kind == 'collective':
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    time.sleep(0.1)  # docs/troubleshooting.md: with gloo, a process that ends at once may abort
os.write(1, b'complete ')
"""


@pytest.mark.parametrize(
    ("kind", "stacks", "runs"),
    [("collective", "in all_reduce at silent.py:", 2), ("sleeps", "in <module> at silent.py:", 2), ("writes", "", 1)],
)
def test_a_step_that_is_silent_is_ended_with_its_stacks_and_continues_from_its_checkpoint(
    testbed, venv, work, kind, stacks, runs
):
    (work / "silent.py").write_text(SILENT)
    line = f"pytorch-run --silent 20s --no-preflight -- srun -N2 -n2 conda-python-distributed silent.py {kind}"
    done = testbed.run_unchecked(f"module load {venv}\nsalloc --no-kill -N2 -n2 {line}", cwd=work)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["complete"] * 2
    assert done.stderr.count("pytorch-run: run ") == runs
    assert stacks in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("first", "second", "epochs"),
    # Slurm notices by itself that a slurmd does not answer, after 15 s or so of training
    [(kill_node, kill_node, 60), (kill_slurmd, kill_slurmd_and_report, 400)],
)
def test_after_two_failures_the_weights_are_those_of_an_undisturbed_run(
    testbed, cluster, venv, few_images, first, second, epochs
):
    line = f"-N2 --ntasks-per-node=1 -- conda-python-distributed -u {TRAINING} --epochs {epochs} --modelpath"
    undisturbed = Session(testbed, cluster, venv, few_images, f"salloc -N2 srun {line.replace(' -- ', ' ')} through")
    assert undisturbed.end() == 0, undisturbed.output()

    run = f"salloc --no-kill -N4 pytorch-run --spare 2 {line}"
    session = Session(testbed, cluster, venv, few_images, f"{run} run")
    session.wait_for("epoch 5/")
    first(cluster, "nid001002")
    session.wait_for("run 2 on nid001001,nid001003, 1 spare")
    session.wait_for("resuming after ")
    second(cluster, "nid001001")  # which had rank 0
    session.wait_for("run 3 on nid001003,nid001004, 0 spare")
    assert session.end() == 0, session.output()
    assert session.output().count("resuming after ") == 2
    one, other = (torch.load(few_images / name / "mnist_ddp.pt", weights_only=True) for name in ("through", "run"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

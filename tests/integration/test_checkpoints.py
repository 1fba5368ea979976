"""A training that is killed, or that fills the disk, can be resumed."""

import shlex

import pytest
import torch

pytestmark = pytest.mark.testbed

#: 20 steps an epoch.
TRAINING = "$PAYLOAD/mnist_ddp.py --data noise --batch-size 20 --epochs 5 --lr 0.001 --modelpath"
#: Threads that wait for each other would take the cores of other tests.
ENVIRONMENT = "unset MNIST_ROOT; export OMP_NUM_THREADS=1"


#: A training whose ranks stop in the third epoch and wait to be killed.
WAITING = """
import os, runpy, sys, time
sys.path.insert(0, os.environ['PAYLOAD'])
from training.progress import Progress
def update(progress, *arguments, update=Progress.update):
    while progress.name == 'epoch 3/5':
        time.sleep(0.1)
    update(progress, *arguments)
Progress.update = update
sys.argv[0] = os.environ['PAYLOAD'] + '/mnist_ddp.py'
runpy.run_path(sys.argv[0], run_name='__main__')
"""


def weights(directory):
    """The final weights of a training."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


def test_two_killed_ranks_resume_as_one_and_reach_the_weights_of_one_process(testbed, venv, work, noise):
    enter = "conda-python-distributed -u"
    job = f"{work.name}-killed"
    (work / "waiting.py").write_text(WAITING)
    waiting = TRAINING.replace("$PAYLOAD/mnist_ddp.py", "waiting.py")
    output = testbed.run(
        f"""module load {venv}
{ENVIRONMENT}
srun -N2 -n2 --job-name={job} {enter} {waiting} run >log & step=$!
until grep -q '^epoch 2/5' log; do kill -0 $step; sleep 0.1; done
scancel --signal=KILL --name={job} --user=$(id -un)
! wait $step
! grep 'epoch 5/5' log
srun -N1 -n1 {enter} {TRAINING} run""",
        cwd=work,
    )
    assert "world size 1," in output and "resuming after " in output and "epoch 1/5" not in output
    testbed.run(
        f"module load {venv}\n{ENVIRONMENT}\nconda-python-simple {TRAINING} through",
        cwd=work,
    )
    for name, weight in weights(work / "through").items():
        # A sum of four gradients differs in its last bits, which 100 steps of Adam magnify. Without the state of its
        # optimizer, the layers of a run differ by up to 6 %.
        assert (weights(work / "run")[name] - weight).norm() < 0.02 * weight.norm()
    names = {path.name for path in (work / "run").iterdir()} - {"curves.png"}  # needs matplotlib
    assert names == {"mnist_ddp.pt", "checkpoints", "metrics.jsonl"}
    assert sorted(path.name for path in (work / "run" / "checkpoints").iterdir()) == [
        "best.pt",
        *(f"epoch-000{epoch}-step-000000.pt" for epoch in (3, 4, 5)),
    ]


def test_a_full_disk_ends_the_training_with_one_line_and_with_more_space_it_resumes(testbed, venv, work, noise):
    if testbed.run_unchecked("unshare --mount mount -t tmpfs none /mnt").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    (work / "run").mkdir()
    # a checkpoint has 360 kB; the file system is mounted in this shell only
    script = f"""
        {ENVIRONMENT}
        mount -t tmpfs -o size=1200k none run
        conda-python-simple {TRAINING} run --keep 9
        echo status $?
        ls -A run run/checkpoints
        mount -o remount,size=20m run
        conda-python-simple {TRAINING} run --keep 9"""
    result = testbed.run_unchecked(f"module load {venv}\nunshare --mount bash -c {shlex.quote(script)}", cwd=work)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.split("status 1\n")
    assert "epoch 2/5" in first and "epoch 5/5" not in first
    assert "epoch-0002-step-000000.pt" in second and "\n." not in second
    assert "resuming after 2 epochs" in second and "epoch 5/5" in second
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("rank 0: run/checkpoints/")
    assert ": cannot be written (No space left on device). The files before it are undamaged: free some" in sentence

"""A training that is killed, or that fills the disk, can be resumed."""

import hashlib
import re
import shlex
import socket

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


@pytest.mark.parametrize(("killed", "resumed"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.thorough)])
def test_killed_ranks_resume_as_half_as_many_and_reach_the_weights_of_one_process(
    testbed, venv, work, noise, killed, resumed
):
    enter = "conda-python-distributed -u"
    job = f"{work.name}-killed"
    (work / "waiting.py").write_text(WAITING)
    waiting = TRAINING.replace("$PAYLOAD/mnist_ddp.py", "waiting.py")
    output = testbed.run(
        f"""module load {venv}
{ENVIRONMENT}
srun -N2 -n{killed} --job-name={job} {enter} {waiting} run >log & step=$!
until grep -q '^epoch 2/5' log; do kill -0 $step; sleep 0.1; done
scancel --signal=KILL --name={job} --user=$(id -un)
! wait $step
! grep 'epoch 5/5' log
srun -N{resumed} -n{resumed} {enter} {TRAINING} run""",
        cwd=work,
    )
    assert f"world size {resumed}," in output and "resuming after " in output and "epoch 1/5" not in output
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


#: Two ranks of lm_fsdp.py in one shell; prints both statuses. A checkpoint has 1.4 MB.
SHARDED = """ranks() {
  for rank in 0 1; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 python -u $PAYLOAD/lm_fsdp.py \
      --size 100K --context 32 --batch-size 4 --data text --steps 60 --interval 60 --every 10 --keep 9 \
      --modelpath run $2 & pids[$rank]=$!
  done
  for rank in 0 1; do wait ${pids[$rank]} && echo status 0 || echo status $?; done
  (cd run; find . -type f ! -name '__*' | xargs md5sum | sort -k2)
}"""
#: In the directory of a run: none has a name that a run gives to a file.
OF_THE_USER = (
    "notes.txt",
    ".notes.txt.0123abcd",
    "checkpoints/README",
    "checkpoints/.step-mine",
    "checkpoints/step-7/content",
    "checkpoints/step-00000007.tar",
)


@pytest.mark.thorough
def test_a_full_disk_ends_a_sharded_training_with_one_line_and_files_of_the_user_stay(testbed, venv, work):
    if testbed.run_unchecked("unshare --mount mount -t tmpfs none /mnt").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    (work / "run").mkdir()
    (work / "text").write_text("".join(f"{number} and {number + 1}\n" for number in range(4000)))
    reserved = socket.socket()  # rank 0 can listen on its port, and no other process receives it: socket(7)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    script = f"""
        {ENVIRONMENT}
        mount -t tmpfs -o size=5m none run
        mkdir -p run/checkpoints/step-7
        for name in {" ".join(OF_THE_USER)}; do echo $name >run/$name; done
        {SHARDED}
        ranks {port}; echo ==
        mount -o remount,size=50m run
        ranks {port}; echo ==
        ranks {port} --restart"""
    result = testbed.run_unchecked(f"module load {venv}\nunshare --mount bash -c {shlex.quote(script)}", cwd=work)
    reserved.close()
    assert result.returncode == 0, result.stderr
    full, resumed, restarted = result.stdout.split("==\n")

    (sentence,) = result.stderr.splitlines()
    step = re.match(
        r"rank \d: run/checkpoints/step-(\d{8}): cannot be written \(No space left on device\)\. The files "
        "before it are undamaged: free some space",
        sentence,
    )[1]
    assert full.count("status 1\n") == 2 and f"/step-{int(step) - 10:08}/manifest.json" in full
    assert f"resuming after {int(step) - 10} steps" in resumed and resumed.count("status 0\n") == 2
    assert "resuming" not in restarted and restarted.count("status 0\n") == 2
    for output in (full, resumed, restarted):
        names = re.findall(r"^[0-9a-f]{32}  \./(.*)", output, re.MULTILINE)
        own = [name for name in names if name not in OF_THE_USER]
        assert len(own) == len(names) - len(OF_THE_USER)
        assert all(
            re.fullmatch(r"checkpoints/step-\d{8}/(manifest.json|\.metadata)", name) or "/" not in name for name in own
        )
        mine = {name: content for content, name in re.findall(r"^([0-9a-f]{32})  \./(.*)", output, re.MULTILINE)}
        assert all(mine[name] == hashlib.md5(f"{name}\n".encode()).hexdigest() for name in OF_THE_USER)  # noqa: S324

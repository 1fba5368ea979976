"""A training that is killed, or that fills the disk, can be resumed."""

import re
import shlex

import pytest
import torch

pytestmark = pytest.mark.testbed

TRAINING = "$PAYLOAD/mnist_ddp.py --epochs 5 --lr 0.002 --modelpath"
#: Threads that wait for each other would take the cores of other tests.
ENVIRONMENT = "unset MNIST_ROOT; export OMP_NUM_THREADS=1"


def weights(directory):
    """The final weights of a training."""
    return torch.load(directory / "mnist_ddp.pt", weights_only=True)


@pytest.mark.parametrize(("killed", "resumed"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.thorough)])
def test_killed_ranks_resume_as_half_as_many_and_reach_the_weights_of_one_process(
    testbed, container, work, killed, resumed
):
    enter = "singularity exec $SIF conda-python-distributed -u"
    job = f"{work.name}-killed"
    output = testbed.run(
        f"""module load {container}
{ENVIRONMENT}
srun -N2 -n{killed} --job-name={job} {enter} {TRAINING} run >log & step=$!
until grep -q '^epoch 2/5' log; do kill -0 $step; sleep 0.1; done
scancel --signal=KILL --name={job} --user=$(id -un)
! wait $step
! grep 'epoch 5/5' log
srun -N{resumed} -n{resumed} {enter} {TRAINING} run""",
        cwd=work,
    )
    assert f"world size {resumed}," in output and "resuming after " in output and "epoch 1/5" not in output
    testbed.run(
        f"module load {container}\n{ENVIRONMENT}\nsingularity exec $SIF conda-python-simple {TRAINING} through",
        cwd=work,
    )
    for name, weight in weights(work / "through").items():
        # A sum of four gradients differs in its last bits; 120 steps of Adam magnify that to 0.7 %. Without the state
        # of its optimizer, a run differs by 10 %.
        assert (weights(work / "run")[name] - weight).norm() < 0.02 * weight.norm()
    names = {path.name for path in (work / "run").iterdir()} - {"curves.png"}  # needs matplotlib
    assert names == {"mnist_ddp.pt", "checkpoints", "metrics.jsonl"}
    assert sorted(path.name for path in (work / "run" / "checkpoints").iterdir()) == [
        "best.pt", *(f"epoch-000{epoch}-step-000000.pt" for epoch in (3, 4, 5)),
    ]  # fmt: skip


def test_a_full_disk_ends_the_training_with_one_line_and_with_more_space_it_resumes(testbed, venv, work):
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


@pytest.mark.thorough
def test_a_full_disk_ends_a_sharded_training_with_one_line_and_files_of_the_user_stay(testbed, venv, work):
    place = work / "run"
    place.mkdir()
    if testbed.run_unchecked(f"mount -t tmpfs -o size=5m none {place}").returncode != 0:
        pytest.skip("only root may mount the small file system, and not everywhere")
    try:
        names = ("notes.txt", ".notes.txt.0123abcd", "checkpoints/README", "checkpoints/.step-mine",
                 "checkpoints/step-7/content", "checkpoints/step-00000007.tar")  # fmt: skip
        for name in names:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)
        (work / "text").write_text("".join(f"{number} and {number + 1}\n" for number in range(4000)))

        def train(*options):
            line = "conda-python-distributed -u $PAYLOAD/lm_fsdp.py --size 100K --context 32 --batch-size 4 --data text"
            steps = "--steps 60 --interval 60 --every 10 --keep 9 --modelpath run"
            script = f"module load {venv}\n{ENVIRONMENT}\nsrun -N2 -n2 {line} {steps} {' '.join(options)}"
            result = testbed.run_unchecked(script, cwd=work)
            assert all((place / name).read_text() == name for name in names)
            found = {path.name for path in (place / "checkpoints").iterdir()}
            found -= {"README", ".step-mine", "step-7", "step-00000007.tar"}
            return result, sorted(int(name.removeprefix("step-")) for name in found)

        result, kept = train()
        assert result.returncode == 1
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("srun: ", "slurmstepd: "))]
        assert len(lines) == 1 and re.match(
            r"rank \d: run/checkpoints/step-\d{8}: cannot be written \(No space left on device\)\. The checkpoints "
            "before it are undamaged: free some", lines[0]), result.stderr  # fmt: skip
        assert kept and kept[-1] < 60
        testbed.run(f"mount -o remount,size=50m {place}")
        result, found = train()
        assert result.returncode == 0, result.stderr
        assert f"resuming after {kept[-1]} steps" in result.stdout and found == [10, 20, 30, 40, 50, 60]
        result, found = train("--restart")
        assert "resuming" not in result.stdout and found == [10, 20, 30, 40, 50, 60]
    finally:
        testbed.run(f"umount {place}")

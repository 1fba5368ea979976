"""tests/reframe lists its tests for every site file without the site, and writes the site's own launch lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
SUITE = REPOSITORY / "tests" / "reframe"
SITES = sorted(path.stem for path in (SUITE / "sites").glob("*.py"))
TESTS = {
    "AllReduce",
    "CheckpointAndRequeue",
    "Doctor",
    "InstallRecipe",
    "Launcher",
    "ModuleInterface",
    "OneProcess",
    "TrainLanguageModel",
    "TrainMNIST",
    "UserSoftware",
}


def reframe(site, prefix, *options):
    """Run ReFrame without the variables of Lmod, Slurm and the testbed; return its output."""
    command = Path(sys.executable).with_name("reframe")
    files = ["-C", SUITE / "sites" / f"{site}.py", "-c", SUITE]
    result = subprocess.run(
        [command, "--nocolor", "--prefix", prefix, *files, *options],
        cwd=prefix,
        env={"PATH": os.defpath, "HOME": str(prefix)},
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("site", SITES)
def test_all_tests_are_listed_for_every_site_without_the_site(site, tmp_path):
    output = reframe(site, tmp_path, "--list=C")
    assert "WARNING" not in output
    cases = re.findall(
        rf"^- (\w+)(?: %(\S+))? /\w+ @{site if site != 'slurm' else 'cluster'}:(\S+)", output, re.MULTILINE
    )
    assert {name for name, _, _ in cases} == TESTS
    assert {argument for name, argument, _ in cases if name == "AllReduce"} == {"nodes=1", "nodes=2", "nodes=many"}
    assert {"launcher=srun", "launcher=torchrun", "launcher=ddp-env"} <= {
        argument for name, argument, _ in cases if name == "Launcher"
    }


#: Site -> lines in a job of all ranks on two nodes: those of the site's page, for this repository's check.
CHECK = "-u $PAYLOAD/allreduce_check.py --gpu"
LINES = {
    "alps": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        f"srun --cpus-per-task=72 --environment=$PYTORCH_EDF $RUNSCRIPTS/conda-python-distributed {CHECK}",
    ],
    "frontier": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --network=disable_rdzv_get",
        f"srun --cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest conda-python-distributed {CHECK}",
    ],
    "lumi": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --gpus-per-node=8",
        f"srun singularity exec $SIF conda-python-distributed {CHECK}",
    ],
    "perlmutter": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --image=nersc/pytorch:26.01.01",
        f"srun --cpus-per-task=32 shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/conda-python-distributed {CHECK}",
    ],
    "slurm": [
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=2",
        "srun singularity exec $SIF conda-python-distributed -u $PAYLOAD/allreduce_check.py --threshold",
    ],
    "testbed": [
        "#SBATCH --nodes=2",
        "srun singularity exec $SIF conda-python-distributed -u $PAYLOAD/allreduce_check.py",
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("site", SITES)
def test_every_job_can_be_written_without_the_site_and_has_its_launch_line(site, tmp_path):
    output = reframe(site, tmp_path, "--dry-run")
    assert re.search(r"\(0 failure\(s\), 0 expected failure\(s\), 0 skipped, 0 aborted\)", output), output
    jobs = [path.read_text() for path in tmp_path.glob("stage/*/*/*/AllReduce_*/rfm_job.sh")]
    assert any(all(f"\n{line}" in job for line in LINES[site]) for job in jobs), jobs

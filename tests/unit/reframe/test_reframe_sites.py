"""tests/reframe lists its tests for every site file without the site, and writes the site's own launch lines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).resolve().parents[3]
SUITE = REPOSITORY / "tests" / "reframe"
SITES = sorted({path.stem for path in (SUITE / "sites").glob("*.py")} - {"description"})
TESTS = {"AllReduce", "Doctor", "InstallRecipe", "Launcher", "ModuleInterface", "TrainLanguageModel", "TrainMNIST"}
TESTS |= {"UserSoftware"}


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


@pytest.mark.parametrize("site", [site for site in SITES if site != "testbed"])  # tests/integration/test_reframe.py
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


#: Site -> ranks and GPUs of a node, other options of the job, and the line of the site's page for this suite's check.
GPU_CHECK = "conda-python-distributed -u $PAYLOAD/allreduce_check.py --gpu"
IN_IMAGE = "srun singularity exec $SIF conda-python-distributed -u $PAYLOAD/allreduce_check.py"
JOBS = {
    "alps": (4, 4, "", f"srun --cpus-per-task=72 --environment=$PYTORCH_EDF $RUNSCRIPTS/{GPU_CHECK}"),
    "frontier": (
        *(8, 0, "--network=disable_rdzv_get"),
        f"srun --cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest {GPU_CHECK}",
    ),
    "lumi": (8, 8, "", f"{IN_IMAGE} --gpu"),
    "perlmutter": (
        *(4, 4, "--image=nersc/pytorch:26.01.01"),
        f"srun --cpus-per-task=32 shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/{GPU_CHECK}",
    ),
    "slurm": (2, 0, "", f"{IN_IMAGE} --threshold"),
    "testbed": (2, 0, "", IN_IMAGE),
}


@pytest.mark.thorough
@pytest.mark.parametrize("site", SITES)
def test_every_job_can_be_written_without_the_site_and_has_its_launch_line(site, tmp_path):
    output = reframe(site, tmp_path, "--dry-run")
    assert "(0 failure(s), 0 expected failure(s), 0 skipped, 0 aborted)" in output, output
    ranks, gpus, option, launch = JOBS[site]
    options = ["--nodes=2", f"--ntasks-per-node={ranks}", f"--gpus-per-node={gpus}" if gpus else "", option]
    lines = [*(f"#SBATCH {each}" for each in options if each), launch]
    jobs = [path.read_text() for path in tmp_path.glob("stage/*/*/*/AllReduce_*/rfm_job.sh")]
    assert any(all(f"\n{line}" in job for line in lines) for job in jobs), jobs

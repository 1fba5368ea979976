"""tests/reframe lists its tests for every site file without the site, and writes the site's own launch lines."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

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
    system = "cluster" if site == "slurm" else site
    cases = re.findall(rf"^- (\w+)(?: %(\S+))? /\w+ @{system}:(\S+)", output, re.MULTILINE)
    assert {name for name, _, _ in cases} == TESTS
    assert {argument for name, argument, _ in cases if name == "AllReduce"} == {"nodes=1", "nodes=2", "nodes=many"}
    assert {"launcher=srun", "launcher=torchrun", "launcher=ddp-env"} <= {
        argument for name, argument, _ in cases if name == "Launcher"
    }


class Job(NamedTuple):
    """The line of a site's page for this suite's check, ranks and GPUs of a node, and another option of the job."""

    launch: str
    ranks: int = 2
    gpus: int = 0
    option: str = ""


GPU_CHECK = "conda-python-distributed -u $PAYLOAD/allreduce_check.py --gpu"
IN_IMAGE = "srun singularity exec $SIF conda-python-distributed -u $PAYLOAD/allreduce_check.py"
JOBS = {
    "alps": Job(f"srun --cpus-per-task=72 --environment=$PYTORCH_EDF $RUNSCRIPTS/{GPU_CHECK}", ranks=4, gpus=4),
    "frontier": Job(
        f"srun --cpus-per-task=7 --gpus-per-task=1 --gpu-bind=closest {GPU_CHECK}",
        ranks=8,
        option="--network=disable_rdzv_get",
    ),
    "lumi": Job(f"{IN_IMAGE} --gpu", ranks=8, gpus=8),
    "perlmutter": Job(
        f"srun --cpus-per-task=32 shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/{GPU_CHECK}",
        ranks=4,
        gpus=4,
        option="--image=nersc/pytorch:26.01.01",
    ),
    "slurm": Job(f"{IN_IMAGE} --threshold"),
    "testbed": Job(IN_IMAGE),
}


@pytest.mark.thorough
@pytest.mark.parametrize("site", SITES)
def test_every_job_can_be_written_without_the_site_and_has_its_launch_line(site, tmp_path):
    output = reframe(site, tmp_path, "--dry-run")
    assert "(0 failure(s), 0 expected failure(s), 0 skipped, 0 aborted)" in output, output
    job = JOBS[site]
    lines = [job.launch, "#SBATCH --nodes=2", f"#SBATCH --ntasks-per-node={job.ranks}"]
    if job.option:
        lines.append(f"#SBATCH {job.option}")
    if job.gpus:
        lines.append(f"#SBATCH --gpus-per-node={job.gpus}")
    jobs = [path.read_text() for path in tmp_path.glob("stage/*/*/*/AllReduce_*/rfm_job.sh")]
    assert any(all(f"\n{line}" in text for line in lines) for text in jobs), jobs

"""The job scripts that are installed with the payload, submitted as their pages say.

The testbed stands in for the systems: what only they have is taken out of a copy (GPUs, partitions, accounts,
fabric), and a CPU module takes the place of theirs.
"""

import re
from pathlib import Path

import pytest
from testbed.job_scripts import adapted, written
from testbed.packages import find_optional

pytestmark = pytest.mark.testbed

@pytest.fixture
def job(testbed, work, dataset):
    """A function that submits a copy of a job script as the testbed can run it; what the job wrote."""

    def submit(script, module, options=""):
        copy = work / Path(script).name
        copy.write_text(adapted(script, testbed.layout, (module, dataset)))
        result = testbed.run_unchecked(f"mkdir -p logs; sbatch --wait {options} {copy}", cwd=work)
        assert result.returncode == 0, f"{result.stdout}{result.stderr}{written(work)}"
        return written(work)

    return submit


def test_lumis_job_trains_on_four_ranks_and_names_its_output_after_itself_and_its_number(job, container):
    ((name, text),) = job("lumi/mnist.slurm", container, "--ntasks-per-node=2").items()
    assert re.fullmatch(r"output_mnist\.slurm_\d+\.txt", name)
    assert "world size 4," in text
    assert "test accuracy" in text


@pytest.mark.parametrize(("script", "size"), [("pytorch_nn_job.sl", 1), ("pytorch_ddp_job.sl", 4)])
def test_frontiers_jobs_run_without_the_submitters_environment(job, venv, script, size):
    written = job(f"frontier/{script}", venv, "--export=NONE --ntasks-per-node=2")
    (output,) = (text for name, text in written.items() if re.fullmatch(r"pytorch_tutorial-\d+\.o", name))
    assert f"world size {size}," in output
    assert "test accuracy" in output


@pytest.mark.parametrize("module", ["container", "venv"], indirect=True)
def test_torchrun_under_mpirun_trains_in_container_and_venv_with_the_same_job(job, module):
    if find_optional("openmpi-bin") is None:
        pytest.skip("openmpi-bin is not installed (./run-tests does that where it may install packages)")
    ((name, text),) = job("infiniband/ddp_pytorch.job", module, "--cpus-per-task=2").items()
    assert re.fullmatch(r"ddp_pytorch-\d+\.out", name)
    assert "test accuracy" in text


def test_nerscs_module_job_trains_on_four_ranks(job, venv):
    ((name, text),) = job("perlmutter/submit_batch_modules.sh", venv).items()
    assert re.fullmatch(r"module_job_log_\d+\.out", name)
    assert "world size 4," in text

"""The job scripts that are installed with the payload, submitted as their pages say.

The testbed stands in for the systems: what only they have is taken out of a copy (GPUs, partitions, accounts,
fabric), and a CPU module takes the place of theirs.
"""

import re
from pathlib import Path

import pytest
from testbed.job_scripts import adapted, submission, with_digits, written
from testbed.packages import find_optional

pytestmark = pytest.mark.testbed


@pytest.fixture
def job(testbed, work, dataset):
    """A function that submits a copy of a job script as the testbed can run it; what the job wrote."""

    def submit(script, module, options=""):
        copy = work / Path(script).name
        copy.write_text(with_digits(adapted(script, testbed.layout, (module, dataset))))
        testbed.run(f"mkdir -p logs\n{submission(copy, options)}", cwd=work)
        return written(work)

    return submit


def test_lumis_job_trains_on_four_ranks_and_names_its_output_after_itself_and_its_number(job, container):
    ((name, text),) = job("lumi/mnist.slurm", container, "--ntasks-per-node=2").items()
    assert re.fullmatch(r"output_mnist\.slurm_\d+\.txt", name)
    assert "world size 4," in text
    assert "test accuracy" in text


def output_of_frontiers(job, script, venv):
    """What Frontier's job prints, submitted without the submitter's environment."""
    written = job(f"frontier/{script}", venv, "--export=NONE --ntasks-per-node=2")
    (output,) = (text for name, text in written.items() if re.fullmatch(r"pytorch_tutorial-\d+\.o", name))
    return output


def test_frontiers_ddp_job_trains_on_four_ranks_without_the_submitters_environment(job, venv):
    output = output_of_frontiers(job, "pytorch_ddp_job.sl", venv)
    assert "world size 4," in output
    assert "test accuracy" in output


def test_frontiers_nn_job_prints_its_loss_every_thousand_steps_and_ends_near_99_percent(job, venv):
    path, *losses, last = output_of_frontiers(job, "pytorch_nn_job.sl", venv).splitlines()
    assert path.startswith("Python Environment Path: /")
    found = [re.fullmatch(r"Epoch \[(\d+)/10000\], Loss: (0\.\d{4})", line) for line in losses]
    assert [int(match[1]) for match in found] == list(range(1000, 10001, 1000))
    assert 0.08 < float(found[-1][2]) < 0.13
    assert 98 <= float(re.fullmatch(r"Accuracy: (\d+\.\d\d)%", last)[1]) < 100


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
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

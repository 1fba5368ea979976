"""The job scripts that are installed with the payload, submitted unedited on the testbed with a CPU module loaded.

Those of a system get options of sbatch in place of its partition, nodes and GPUs. Frontier's alone are edited.
"""

import re

import pytest

from testbed.packages import find_optional
from testbed.recipes import VENV
from testbed.stand_ins.job_scripts import HERE, submission, without_hardware, written

pytestmark = pytest.mark.testbed


@pytest.fixture
def job(testbed, work, few_images):
    """A function that submits a job script with a module loaded and few images as data; returns the job's output."""

    def submit(script, module, options=""):
        script = script if script.startswith("/") else f"$PAYLOAD/jobs/{script}"
        load = f"module load {module}\nexport MNIST_ROOT={few_images}\nmkdir -p logs"
        testbed.run(f"{load}\n{submission(script, options)}", cwd=work)
        return written(work)

    return submit


def test_lumis_job_trains_on_two_nodes_and_names_its_output_after_itself_and_its_number(job, container):
    """With one rank on each; test_lumi_course.py has two."""
    ((name, text),) = job("lumi/mnist.slurm", container, f"{HERE} --ntasks-per-node=1").items()
    assert re.fullmatch(r"output_mnist\.slurm_\d+\.txt", name)
    assert "world size 2," in text
    assert "test accuracy" in text


def output_of_frontiers(job, script, testbed, venv, work, options=""):
    """The output of Frontier's job, submitted without the submitter's environment."""
    text = without_hardware(f"frontier/{script}")
    text = text.replace("PyTorch/2.10.0-rocm-7.1-venv", venv)
    # the modules of a site are on its users' MODULEPATH
    copy = work / script
    copy.write_text(text.replace("\nset -e\n", f"\nset -e\nmodule use {testbed.layout.modules}\n"))
    written = job(f"{copy} {options}", venv, "--export=NONE --ntasks-per-node=1")
    (output,) = (text for name, text in written.items() if re.fullmatch(r"pytorch_tutorial-\d+\.o", name))
    return output


def test_frontiers_ddp_job_trains_on_two_nodes_without_the_submitters_environment(job, testbed, venv, work):
    output = output_of_frontiers(job, "pytorch_ddp_job.sl", testbed, venv, work, f"--data {work}")
    assert "world size 2," in output
    assert "test accuracy" in output


def test_frontiers_nn_job_prints_its_loss_every_thousand_steps_and_ends_near_99_percent(job, testbed, venv, work):
    path, *losses, last = output_of_frontiers(job, "pytorch_nn_job.sl", testbed, venv, work).splitlines()
    assert path.startswith("Python Environment Path: /")
    found = [re.fullmatch(r"Epoch \[(\d+)/10000\], Loss: (0\.\d{4})", line) for line in losses]
    assert [int(match[1]) for match in found] == list(range(1000, 10001, 1000))
    assert 0.08 < float(found[-1][2]) < 0.13
    assert 98 <= float(re.fullmatch(r"Accuracy: (\d+\.\d\d)%", last)[1]) < 100


@pytest.mark.parametrize("module", ["container", pytest.param("venv", marks=pytest.mark.thorough)], indirect=True)
def test_torchrun_under_mpirun_trains_in_container_and_venv_with_the_same_job(job, module):
    if find_optional("openmpi-bin") is None:
        pytest.skip("openmpi-bin is not installed (./run-tests does that where it may install packages)")
    ((name, text),) = job("infiniband/ddp_pytorch.job", module).items()
    assert re.fullmatch(r"ddp_pytorch-\d+\.out", name)
    assert "test accuracy" in text


def test_nerscs_module_job_trains_on_two_nodes(job, venv):
    ((name, text),) = job("perlmutter/submit_batch_modules.sh", venv, f"{HERE} --ntasks-per-node=1").items()
    assert re.fullmatch(r"module_job_log_\d+\.out", name)
    assert "world size 2," in text


def test_a_recipe_is_installed_by_a_job(job, venv):
    ((name, text),) = job(f"infiniband/venv_build.job {VENV}.eb", venv).items()
    assert re.fullmatch(r"venv_build-\d+\.out", name)
    assert f"{venv} is already installed" in text


def test_without_the_data_module_a_training_in_several_jobs_generates_digits(testbed, venv, work):
    empty = f"module load {venv}\nexport MODULEPATH={work}"
    job = submission("$PAYLOAD/jobs/slurm/train_requeue.job --epochs 1", "--ntasks-per-node=1")
    testbed.run(f"{empty}\n{job}", cwd=work)
    ((name, text),) = written(work).items()
    assert re.fullmatch(r"train-\d+\.out", name)
    assert re.search(r"world size 2,.* 6000 training and 1000 test images", text)

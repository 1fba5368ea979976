"""The job scripts that are installed with the payload, submitted unedited on the testbed with a CPU module loaded.

Those of a system get options of sbatch in place of its partition, nodes and GPUs. Frontier's alone are edited.
"""

import re

import pytest
from meeting import TRAINING as STAND_IN
from optional_packages import need
from waiting import wait_for

from testbed.recipes import VENV
from testbed.stand_ins.job_scripts import HERE, JOBS, submission, without_hardware, written

pytestmark = [pytest.mark.testbed, pytest.mark.early]


@pytest.fixture
def job(testbed, work):
    """A function that submits a job script with a module loaded, and returns the job's output.

    In place of mnist_ddp.py, its ranks meet and print their options: what trains is below, in test_lumi_course.py and,
    with --thorough, every script.
    """
    (work / "payload").mkdir()
    (work / "payload" / "mnist_ddp.py").write_text(STAND_IN)

    def submit(script, module, options=""):
        script = script if script.startswith("/") else f"{JOBS}/{script}"
        own = f"export PAYLOAD={work}/payload PAYLOADPYTORCH={work}/payload MNIST_ROOT=images"
        testbed.run(f"module load {module}\n{own}\nmkdir -p logs\n{submission(script, options)}", cwd=work)
        return written(work)

    return submit


#: Script, module, its output file, the job's name, and the ranks of its two nodes.
STARTED = [
    ("lumi/mnist.slurm", "container", r"output_mnist\.slurm_\d+\.txt", "mnist.slurm", 4),
    ("infiniband/ddp_pytorch.job", "venv", r"ddp_pytorch-\d+\.out", "ddp_pytorch", 2),
    ("perlmutter/submit_batch_modules.sh", "venv", r"module_job_log_\d+\.out", "dl-test", 4),
    ("slurm/train_requeue.job", "venv", r"train-\d+\.out", "train", 4),
]


@pytest.mark.parametrize(("script", "module", "file", "name", "size"), STARTED, indirect=["module"])
def test_a_job_starts_its_ranks_with_a_directory_of_its_name(job, work, script, module, file, name, size):
    if script.startswith("infiniband"):
        need("openmpi-bin")
    ((found, text),) = job(script, module, HERE if size == 4 else "").items()
    assert re.fullmatch(file, found)
    assert f"world size {size}, on 2 nodes, options: --modelpath {work}/outputs/{name}\nMNIST in images\n" in text


def test_frontiers_ddp_job_starts_its_ranks_without_the_submitters_environment(job, testbed, venv, work):
    text = without_hardware("frontier/pytorch_ddp_job.sl").replace("PyTorch/2.10.0-rocm-7.1-venv", venv)
    # the modules of a site are on its users' MODULEPATH
    own = f"module use {testbed.layout.modules}\nexport MNIST_ROOT=images"
    copy = work / "pytorch_ddp_job.sl"
    copy.write_text(text.replace("\nset -e\n", f"\nset -e\n{own}\n").replace('"$PAYLOAD/m', f'"{work}/payload/m'))
    files = job(str(copy), venv, "--export=NONE --ntasks-per-node=2")
    (output,) = (text for name, text in files.items() if re.fullmatch(r"pytorch_tutorial-\d+\.o", name))
    assert f"world size 4, on 2 nodes, options: --modelpath {work}/outputs/pytorch_ddp\n" in output


def test_a_recipe_is_installed_by_a_job(job, venv):
    ((name, text),) = job(f"infiniband/venv_build.job {VENV}.eb", venv).items()
    assert re.fullmatch(r"venv_build-\d+\.out", name)
    assert f"{venv} is already installed" in text


#: The job scripts that train under Slurm: those of a system without what only the system has.
TRAINING = (
    "lumi/mnist.slurm",
    *(
        pytest.param(script, marks=pytest.mark.thorough)
        for script in (
            "slurm/train_requeue.job",  # test_preemption.py always submits it twice
            "perlmutter/submit_batch_modules.sh",
            "infiniband/ddp_pytorch.job",
            "frontier/pytorch_ddp_job.sl",
            "perlmutter/submit_batch_shifter.sh",
            "alps/ddp_container_engine.sh",
        )
    ),
)


@pytest.mark.parametrize("script", TRAINING)
def test_a_script_that_is_submitted_twice_in_a_directory_resumes(testbed, venv, work, few_images, script, request):
    """tests/unit/payload has the other options, a directory in use, and --restart."""
    engines = r'singularity exec "\$SIFPYTORCH" |shifter --image="\$SHIFTER_IMAGE" |--environment="\$PYTORCH_EDF" '
    text = re.sub(engines, "", without_hardware(script))
    (work / "train.job").write_text(text.replace("nodes=4", "nodes=2"))
    (work / "logs").mkdir()
    load = f"module load {venv}\nexport MNIST_ROOT={few_images} SIFPYTORCH=x SHIFTER_IMAGE=x PYTORCH_EDF=x"
    thorough = request.config.getoption("--thorough")
    options = f"--job-name=again {HERE} --ntasks-per-node=1 --nodes={1 + thorough}"

    def submit(*more):
        before = set(written(work))
        submitted = submission(f"train.job {' '.join(more)}", options)
        testbed.run(f"{load}\n{submitted}", cwd=work)
        return "".join(text for name, text in written(work).items() if name not in before)

    first = submit("--epochs 2")
    assert f"world size {1 + thorough}," in first and "epoch 2/2" in first and "resuming" not in first
    (work / "outputs/again/checkpoints/epoch-0002-step-000000.pt").unlink()
    second = submit("--epochs 2")
    assert f"resuming after 1 epochs and 0 steps, from {work}/outputs/again/checkpoints/epoch-0001" in second
    assert "epoch 2/2" in second and "epoch 1/2" not in second


def test_each_element_of_an_array_has_a_directory_and_one_that_is_requeued_leaves_the_others(testbed, venv, work):
    job = (JOBS / "slurm/train_requeue.job").read_text()
    stops = 'srun() { [ "$SLURM_ARRAY_TASK_ID" != 3 ] || [ -n "$SLURM_RESTART_COUNT" ] || return 75; echo "$@"; }\n'
    (work / "train.job").write_text(job.replace("set -e\n", f"set -e\n{stops}", 1))
    line = "sbatch --parsable --array=1-3 --ntasks-per-node=1 --nodes=1 train.job"
    number = testbed.run(f"module load {venv}\n{line}", cwd=work).strip()

    def states():
        shown = testbed.run(f"scontrol show job {number}")
        return sorted(re.findall(r"ArrayTaskId=(\d+).*?JobState=(\w+).*?Restarts=(\d+)", shown, re.DOTALL))

    expected = [("1", "COMPLETED", "0"), ("2", "COMPLETED", "0"), ("3", "PENDING", "1")]
    wait_for(lambda: states() == expected, report=states)
    testbed.run(f"scancel {number}")
    texts = "".join(written(work).values())
    assert all(f"--modelpath {work}/outputs/train/{element}\n" in texts for element in (1, 2))

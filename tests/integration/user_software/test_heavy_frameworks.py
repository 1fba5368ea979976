"""The commands of docs/frameworks.md for DeepSpeed, torchtitan, Ray Train, submitit, Hydra and Dask."""

import json
import re
from pathlib import Path

import pytest
from framework_page import commands
from framework_user import User
from repository import TREE
from user_installation import Installation

pytestmark = [pytest.mark.testbed, pytest.mark.thorough, pytest.mark.early]

#: A loss that falls, as the programs print it.
LOSSES = r"(\d+\.\d+) -> (\d+\.\d+)"


def falls(first, last):
    """Return whether a training's last loss is well below its first."""
    return float(last) < 0.8 * float(first)


@pytest.fixture(params=["container", "venv"])
def compiling_user(request, testbed, work):
    """A user of the venv module, or of the CPU image itself: that of the other tests has no compiler."""
    if request.param == "venv":
        return request.getfixturevalue("on_venv")
    image = testbed.run(f"module load {request.getfixturevalue('container')}; echo $SIF").strip()
    installation = Installation(testbed, Path(image), ":", work / "prefix")
    (work / "prefix" / "home").mkdir(parents=True)
    installation.install()
    load = f"export TORCH_EXTENSIONS_DIR={work}/extensions\n{installation.script('')}"
    return User(testbed, load, work, venv=False)


def test_deepspeed_trains_in_all_stages(compiling_user):
    user = compiling_user
    user.install("DeepSpeed")
    user.program("deepspeed_train.py")
    launch, _by_torchrun = commands("DeepSpeed", "Launch")
    for stage in (1, 2, 3):
        output = user.run(f"{launch} {stage}")
        ranks = re.findall(rf"^rank (\d) of 4, sum of ranks 6, {LOSSES}$", output, re.MULTILINE)
        assert sorted(rank for rank, *_ in ranks) == ["0", "1", "2", "3"]
        assert all(falls(*losses) for _, *losses in ranks)


SMALL = (
    "--model.hf_assets_path tokenizer --training.dataset_path text --training.steps 10 --training.seq_len 64 "
    "--training.local_batch_size 2 --training.mixed_precision_param float32"
)


def test_torchtitan_trains_where_a_gpu_is_replaced_and_else_asks_for_one(user):
    user.install("torchtitan")
    user.run("pip install --quiet triton")  # torch for GPUs brings it
    (launch,) = commands("torchtitan", "Launch")
    assert "module 'torch._C' has no attribute '_cuda_setDevice'" in user.run_unchecked(f"{launch} 2>&1").stdout
    user.program("titan_tokenizer.py")
    user.run("python train.py tokenizer")
    (user.directory / "text").mkdir()
    text = "to be, or not to be, that is the question; " * 40
    (user.directory / "text" / "data.json").write_text("\n".join([json.dumps({"text": text})] * 200))
    user.program("titan_on_cpus.py")
    line = launch.replace("-u -m torchtitan.train", "--virtual-local-rank -u train.py")
    assert line != launch
    losses = re.findall(r"step: +(\d+) .*?loss: +([\d.]+)", user.run(f"{line} {SMALL} 2>&1"))
    assert [step for step, _ in losses] == ["1"] * 4 + ["10"] * 4
    first, last = ({loss for number, loss in losses if number == step} for step in ("1", "10"))
    assert (len(first), len(last)) == (1, 1)  # each rank prints the mean over all
    assert falls(*first, *last)


def test_ray_train_trains_on_the_nodes_of_a_step(user):
    user.install("Ray Train")
    user.program("ray_train.py")
    (launch,) = commands("Ray Train", "Launch")
    output = user.run(f"{launch} 4")
    printed = set(re.findall(rf"world 4, sum of ranks 6 on 2 Ray nodes, {LOSSES}, 1 thread", output))
    (losses,) = printed  # Ray prints a line once for each of its nodes on this machine
    assert falls(*losses)


SUBMIT = """
import submitit, train
executor = submitit.AutoExecutor("log", slurm_python="conda-python-distributed")
executor.update_parameters(nodes=2, tasks_per_node=2, timeout_min=10)
job = executor.submit(train.train)
print(*job.results(), sep="\\n")
"""


def test_submitit_trains(user):
    user.install("submitit")
    user.program("submitted.py")
    (user.directory / "submit.py").write_text(SUBMIT)
    (launch,) = commands("submitit", "Launch")
    ranks = re.findall(r"^\((\d), (\d), ([\d.]+), ([\d.]+)\)$", user.run(launch), re.MULTILINE)
    assert [(rank, total) for rank, total, *_ in ranks] == [(str(rank), "6") for rank in range(4)]
    assert all(falls(*losses) for _, _, *losses in ranks)


@pytest.fixture(params=["container", "venv"])
def submitter(request, testbed, work):
    """A user who submits with the module's Python, which for the container is in the image, with Slurm's commands."""
    section = (TREE / "docs/user-software.md").read_text().partition("## Call Slurm's commands in the image")[2]
    paths = [path for path in re.findall(r"'(/[^' ]+)'", section.partition("\n## ")[0]) if Path(path).exists()]
    assert "/usr/bin/sbatch" in paths
    load = f"export HOME={work}\nmodule load {request.getfixturevalue(request.param)}\n"
    return User(testbed, f"{load}export APPTAINER_BIND={','.join(paths)}", work, venv=True)


def test_hydras_launcher_submits_the_ranks_of_each_seed(submitter):
    submitter.install("Hydra's submitit launcher")
    submitter.program("hydra_train.py")
    (launch,) = commands("Hydra's submitit launcher", "Launch")
    submitter.run(launch)
    printed = "".join(path.read_text() for path in submitter.directory.glob("multirun/**/*_log.out"))
    expected = [f"seed {seed}: rank {rank} of 4, sum 6" for seed in (1, 2) for rank in range(4)]
    assert sorted(re.findall(r"^seed .*", printed, re.MULTILINE)) == expected


def test_dasks_workers_are_jobs_with_the_modules_torch(submitter):
    submitter.install("Dask")
    submitter.program("dask_work.py", "work.py")
    (launch,) = commands("Dask", "Launch")
    assert "results [0.0, 2.0, 4.0, 6.0]" in submitter.run(launch)

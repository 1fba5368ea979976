"""What the job scripts load and launch, and what their pages tell users to install; none of them is submitted here."""

import re
import subprocess
from typing import NamedTuple

import pytest
from repository import TREE

ALL_JOBS = sorted((TREE / "payload" / "jobs").glob("*/*"))
#: The directories of job scripts for any cluster with one scheduler.
SCHEDULERS = ("flux", "pbs", "slurm")
JOBS = [path for path in ALL_JOBS if path.parent.name not in SCHEDULERS]
#: What brings a venv NCCL's plugin for libfabric, where a cluster profile refuses to run on several nodes without.
PLUGINS = {"frontier": "rccl-net-plugin", "perlmutter": "nccl"}


def loaded(text):
    """The modules that a job script loads."""
    return re.findall(r"^[^#\n]*module load (\S+?);?(?: |$)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_what_a_job_loads_its_page_installs_or_names(job):
    page = (TREE / "docs" / "sites" / f"{job.parent.name}.md").read_text()
    for module in loaded(job.read_text()):
        name = module.split("/")[0]
        recipe = {"PyTorch": f"{module.replace('/', '-')}.eb", "MNIST": "MNIST-1998.eb"}.get(name)
        assert (f"    eb {recipe}" if recipe else name) in page, module
        assert recipe is None or list((TREE / "easyconfigs").glob(f"*/*/{recipe}"))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_on_several_nodes_brings_the_plugin_that_its_profile_insists_on(job):
    text = job.read_text()
    profile = TREE / "modulefiles" / "cluster" / job.parent.name
    insists = re.search(r'^policy PYTORCH_MULTI_NODE_NCCL_NET ("AWS Libfabric"|OFI)', profile.read_text(), flags=re.M)
    venv = any(module.startswith("PyTorch/") and module.endswith("-venv") for module in loaded(text))
    if insists and venv and re.search(r"^#SBATCH (-N |--nodes=)([2-9]|\d{2,})", text, flags=re.MULTILINE):
        assert PLUGINS[job.parent.name] in loaded(text)
    elif insists and "shifter" in job.name:
        (modules,) = re.findall(r"shifter_modules = \[(.*)\]", (TREE / recipe_of(text)).read_text())
        assert f"#SBATCH --module={modules.replace(chr(39), '').replace(' ', '')}\n" in text
    else:
        assert not set(PLUGINS.values()) & set(loaded(text))


def recipe_of(text):
    """The recipe of a job's PyTorch module."""
    (module,) = (module for module in loaded(text) if module.startswith("PyTorch/"))
    return f"easyconfigs/p/PyTorch/{module.replace('/', '-')}.eb"


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_loads_a_module_that_the_sites_driver_supports(job):
    built = re.search(r"PyTorch/\S*-(rocm|cuda)-(\d+\.\d+)", job.read_text())
    profile = (TREE / "modulefiles" / "cluster" / job.parent.name).read_text()
    ranges = dict(re.findall(r"^policy PYTORCH_DRIVER_(\w+) (\S+)$", profile, flags=re.MULTILINE))
    if built and built[1].upper() in ranges:
        oldest, newest = (as_numbers(limit) for limit in ranges[built[1].upper()].split("-"))
        version = as_numbers(built[2])
        assert oldest <= version and version[: len(newest)] <= newest, f"{built[0]} is not within {ranges}"


def as_numbers(version):
    return [int(number) for number in version.split(".")]


#: Each program that the job scripts start prints its command line in place of what it does.
PROGRAMS = ("srun", "mpirun", "mpiexec", "flux", "get-master", "eb", "scontrol", "pytorch-doctor")
#: What a PyTorch module of each kind sets.
LOADED = {
    "PAYLOAD": "/payload",
    "PAYLOADPYTORCH": "/payload",
    "SIFPYTORCH": "/image.sif",
    "SHIFTER_IMAGE": "image",
    "PYTORCH_EDF": "/image.toml",
}


@pytest.fixture
def command_lines(tmp_path):
    """A function that runs a job script; the command lines of the modules and launchers in it."""
    for name in PROGRAMS:
        (tmp_path / name).write_text('#!/bin/sh\necho "${0##*/} $*"\n')
        (tmp_path / name).chmod(0o755)

    (tmp_path / "nodefile").write_text("n1\nn1\nn2\n")

    def run(job, *options, data="", **environ):
        module = f'module() {{ echo module "$@"; [ "$1" != is-avail ] || [ -n "{data}" ]; }}; export -f module'
        result = subprocess.run(
            ["bash", "-c", f"{module}; exec bash {job} {' '.join(options)}"],
            env={
                "PATH": f"{tmp_path}:/usr/bin:/bin",
                "SLURM_JOB_ID": "1",
                "SLURM_NNODES": "2",
                "SLURM_NTASKS": "4",
                "SLURM_SUBMIT_DIR": "/submitted",
                "SLURM_JOB_NAME": "name",
                "SLURM_EXPORT_ENV": "NONE",
                "PBS_JOBID": "7.pbs",
                "PBS_JOBNAME": "name",
                "PBS_O_WORKDIR": str(tmp_path),
                "PBS_NODEFILE": str(tmp_path / "nodefile"),
                **environ,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()

    return run


@pytest.mark.parametrize("job", [job for job in ALL_JOBS if job.name != "venv_build.job"], ids=lambda job: job.name)
def test_a_job_keeps_the_pytorch_module_that_is_loaded_and_else_loads_one(job, command_lines):
    assert "module load PyTorch" not in "\n".join(command_lines(job, **LOADED))
    assert "\n".join(command_lines(job)).count("module load PyTorch") == 1


@pytest.mark.parametrize("job", ALL_JOBS, ids=lambda job: job.name)
def test_a_job_runs_without_the_data_module_and_keeps_the_users_data(job, command_lines):
    assert "module load MNIST" not in command_lines(job, **LOADED)
    assert "module load MNIST" not in command_lines(job, data="yes", MNIST_ROOT="/data", **LOADED)
    wants_data = job.name not in ("venv_build.job", "pytorch_nn_job.sl")
    assert ("module load MNIST" in command_lines(job, data="yes", **LOADED)) is wants_data


#: Job scripts that train on GPUs if Slurm has given them some.
ON_GPUS = [job for job in ALL_JOBS if "SLURM_GPUS_ON_NODE" in job.read_text()]


@pytest.mark.parametrize("job", ON_GPUS, ids=lambda job: job.name)
def test_a_job_trains_on_gpus_if_it_was_given_some(job, command_lines):
    assert len(ON_GPUS) == 7
    without = [line for line in command_lines(job, **LOADED) if "/payload/" in line][-1]
    with_gpus = [line for line in command_lines(job, **LOADED, SLURM_GPUS_ON_NODE="4") if "/payload/" in line][-1]
    assert " --gpu" not in without and " --gpu" in with_gpus


class Line(NamedTuple):
    """A job script with options and variables; the beginning and the end of the line that starts the training."""

    job: str
    options: str
    variables: dict
    start: str
    end: str


MASKS = {"RANKS_PER_NODE": "12", "CPU_BIND": "list:1-8:9-16", "TRAINING": "--gpu --epochs 2"}
LINES = {
    "all cores of a superchip of Alps": Line("alps/ddp_container_engine.sh", "", {}, "srun --cpus-per-task=72 ", ""),
    "cores": Line("alps/ddp_container_engine.sh", "", {"SLURM_CPUS_PER_TASK": "36"}, "srun --cpus-per-task=36 ", ""),
    "ranks of a node": Line("pbs/train.pbs", "", {}, "mpiexec -n 4 --ppn 2 --cpu-bind none conda-", "/outputs/name"),
    "masks": Line("pbs/train.pbs", "", MASKS, "mpiexec -n 24 --ppn 12 --cpu-bind list:1-8:9-16 ", " --gpu --epochs 2"),
    "another script": Line(
        "infiniband/ddp_pytorch.job", "train.py --epochs 16", {}, "", "-distributed train.py --epochs 16"
    ),
    "restart": Line("slurm/train_requeue.job", "--restart --epochs 2", {}, "", "/outputs/name --restart --epochs 2"),
    "a requeued job does not start from scratch again": Line(
        "slurm/train_requeue.job", "--restart --epochs 2", {"SLURM_RESTART_COUNT": "1"}, "", "/outputs/name --epochs 2"
    ),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_job_starts_its_training_with_what_the_user_asks_for(command_lines, line):
    *_, found = command_lines(TREE / "payload" / "jobs" / line.job, line.options, **LOADED, **line.variables)
    assert found.startswith(line.start) and found.endswith(line.end)


def test_flux_is_asked_once_for_the_node_of_rank_0(command_lines, tmp_path):
    (tmp_path / "flux").write_text(
        """#!/bin/sh
case "$*" in
    "resource list -n -o {nnodes}") echo 2 ;;
    "getattr hostlist") echo "n[1-2]" ;;
    *) echo "MASTER_ADDR=$MASTER_ADDR flux $*" ;;
esac
"""
    )
    (tmp_path / "get-master").write_text("#!/bin/sh\n[ \"$1\" = 'n[1-2]' ] && echo n1\n")
    *_, line = command_lines(TREE / "payload/jobs/flux/train.flux", **LOADED, RANKS_PER_NODE="4")
    assert line == (
        "MASTER_ADDR=n1 flux run --nodes=2 --tasks-per-node=4 --exclusive "
        f"conda-python-distributed -u /payload/mnist_ddp.py --modelpath {tmp_path}/outputs/train"
    )


TRAINING = [job for job in ALL_JOBS if "--modelpath" in job.read_text()]


@pytest.mark.parametrize("job", TRAINING, ids=lambda job: job.name)
def test_a_job_that_is_submitted_again_has_the_directory_of_the_first(job, command_lines, tmp_path):
    def directory(*options, **environ):
        *_, line = (line for line in command_lines(job, *options, **LOADED, **environ) if "/payload/" in line)
        assert re.search(r"mnist_ddp\.py(?: --gpu)? --modelpath ", line)
        return re.search(r"--modelpath (\S+)(.*)", line).groups()

    assert len(TRAINING) == 9
    place = {"flux": f"{tmp_path}/outputs/train", "pbs": f"{tmp_path}/outputs/name"}.get(job.parent.name)
    assert directory() == directory(SLURM_JOB_ID="2", PBS_JOBID="8.pbs") == (place or "/submitted/outputs/name", "")
    if job.parent.name not in ("flux", "pbs"):
        assert directory("--restart", "--epochs", "2") == ("/submitted/outputs/name", " --restart --epochs 2")
    if job.parent.name != "flux":
        elements = [directory(SLURM_ARRAY_TASK_ID=number, PBS_ARRAY_INDEX=number)[0] for number in ("1", "2")]
        assert [path.rpartition("/outputs/name")[2] for path in elements] == ["/1", "/2"]


@pytest.mark.parametrize("job", ALL_JOBS, ids=lambda job: job.name)
def test_a_step_has_the_environment_of_the_script_also_with_export_none(job, command_lines, tmp_path):
    for name in ("srun", "mpirun", "eb"):
        (tmp_path / name).write_text('#!/bin/sh\necho "export: $SLURM_EXPORT_ENV"\n')
    found = [line for line in command_lines(job, **LOADED) if line.startswith("export: ")]
    assert set(found) == ({"export: "} if job.parent.name not in ("flux", "pbs") else set())

"""What the systems' job scripts load, and what their pages say to install; none of them is submitted here."""

import re
from pathlib import Path

import pytest

TREE = Path(__file__).parents[3]
JOBS = sorted(path for path in (TREE / "payload" / "jobs").glob("*/*") if path.parent.name != "slurm")
#: What brings a venv NCCL's plugin for libfabric, where a cluster profile refuses to run on several nodes without.
PLUGINS = {"frontier": "rccl-net-plugin", "perlmutter": "nccl"}


def loaded(text):
    """The modules that a job script loads."""
    return re.findall(r"^module load (\S+)", text, flags=re.MULTILINE)


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

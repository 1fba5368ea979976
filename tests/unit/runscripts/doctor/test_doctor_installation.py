"""The checks of the module and of versions with known faults, as their sources report them."""

import json
import re
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import installation as checks
from pytorch_doctor.context import Context, read_recipe

# The module


def test_the_texts_of_a_recipe_are_read_without_running_it(installation, tmp_path):
    env = installation(gpu="rocm")
    recipe = {"name": "PyTorch", "version": "2.13.0", "gpu": "rocm"}
    assert read_recipe(Path(env["EBROOTPYTORCH"])) == ("PyTorch-2.13.0.eb", recipe)
    assert read_recipe(tmp_path / "absent") == (None, {})
    recipe = Path(env["EBROOTPYTORCH"], "easybuild", "PyTorch-2.13.0.eb")
    recipe.write_text("gpu='cuda'\nversion = \"2\"  # not '1'\nsources = ['x']\n")
    assert read_recipe(recipe.parents[1]) == (recipe.name, {"gpu": "cuda", "version": "2"})


@pytest.mark.parametrize(
    ("block", "changes", "kind"),
    [
        ("EB_PyTorchContainer", {}, "container"),  # SIFPYTORCH was unset
        ("EB_PyTorchVenv", {"SHIFTER_IMAGE": "nersc/x:1"}, "venv"),  # the user's
        ("EB_PyTorchEnroot", {"PYTORCH_IMAGE": "x"}, "engine"),
        ("EB_PyTorchShifter", {"SHIFTER_IMAGE": "x"}, "shifter"),
    ],
)
def test_the_recipe_tells_the_kind_of_module(installation, block, changes, kind):
    env = installation()
    Path(env["EBROOTPYTORCH"], "easybuild", "PyTorch-2.13.0.eb").write_text(f"easyblock = '{block}'\n")
    here = Context({**env, **changes})
    assert here.kind == kind


GONE, ABSENT = {"EBROOTPYTORCH": "/absent"}, "no such directory: {}=/absent"
IN_IMAGE = {**GONE, "APPTAINER_CONTAINER": "x", "SINGULARITY_CONTAINER": "x"}
#: Variables, then verdict, finding and remedy.
MODULES = [
    (GONE, FAIL, ABSENT.format("EBROOTPYTORCH"), "load the module again"),
    (IN_IMAGE, FAIL, "no such directory", "bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/absent`"),
    ({"LOADEDMODULES": "PyTorch/2-cpu"}, WARN, "no cluster profile is loaded with it", "module load cluster/"),
    ({}, OK, "PyTorch (venv)", ""),
]


@pytest.mark.parametrize(("changes", "verdict", "finding", "remedy"), MODULES)
def test_what_is_missing_of_a_module_is_named(installation, changes, verdict, finding, remedy):
    found = checks.check_module(Context({**installation(), **changes}))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy


# Versions

LAIF = "lumi-multitorch-full-u24r70f21m50t210-{}.sif"
AWS, RCCL = "aws/deep-learning-containers/pull/6668", "ROCm/aws-ofi-rccl/issues/16"
GROUPS, LEVEL = "laifs-container-recipes/issues/44", "laifs-container-recipes/issues/30"


def check_versions(at, tmp_path, found, image="image.sif", gpu="rocm", source=None, **env):
    """Check a module with an image, and versions that torch's Python finds."""
    (tmp_path / "module" / "provenance").mkdir(parents=True, exist_ok=True)
    (tmp_path / "module" / "provenance" / "image.json").write_text(json.dumps({"source": source}))
    facts = None if found is None else {"versions": found}
    return checks.check_versions(at("", gpu, facts, SIFPYTORCH=f"/images/{image}", **env))


@pytest.mark.parametrize(
    ("found", "image", "env", "sources"),
    [
        ({"aws-ofi-nccl": "1.18.0"}, "x.sif", {}, [AWS]),
        ({"aws-ofi-nccl": "1.20.0"}, "x.sif", {}, []),
        ({"aws-ofi-nccl": "1.1.8"}, "x.sif", {}, []),
        ({"libfabric": "1.22", "aws-ofi-rccl": "1.4.0"}, "x.sif", {}, [RCCL]),
        ({"libfabric": "1.20", "aws-ofi-rccl": "1.4.0"}, "x.sif", {}, []),
        ({"libfabric": "1.22"}, "x.sif", {}, []),
        ({}, LAIF.format("20260807_115122"), {}, [GROUPS]),
        ({}, LAIF.format("20260415_130625"), {}, []),
        ({}, LAIF.format("20260415_130625"), {"NCCL_NET_GDR_LEVEL": "PHB"}, [LEVEL]),
        ({}, LAIF.format("20260415_130625"), {"NCCL_NET_GDR_LEVEL": "LOC"}, []),
        ({}, "x.sif", {"NCCL_NET_GDR_LEVEL": "PHB"}, []),
        (None, LAIF.format("20260807_115122"), {}, [GROUPS]),
        # under another name it is known by what it was installed from
        ({}, "mine.sif", {"source": "/appl/containers/" + LAIF.format("20260807_115122")}, [GROUPS]),
    ],
)
def test_a_combination_with_a_known_fault_is_a_warning_with_its_source(at, tmp_path, found, image, env, sources):
    finding = check_versions(at, tmp_path, found, image, **env)
    assert finding.verdict == (WARN if sources else OK)
    assert re.findall(r"\(https://github\.com/(?:lumi-ai-factory/)?(\S+?)\)", finding.finding) == sources
    assert bool(finding.remedy) == bool(sources)


def test_a_module_for_cpus_and_no_module_have_nothing_to_compare(at, tmp_path):
    found = checks.check_versions(Context({})), check_versions(at, tmp_path, {}, gpu=None)
    assert [one.verdict for one in found] == [NOT_APPLICABLE] * 2

"""The checks of the module and of versions with known faults, as their sources report them."""

import json
import re
from pathlib import Path

import pytest
from pytorch_doctor import NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import installation as checks
from pytorch_doctor.context import Context
from tables import name, table
from variables import variables

# The module


@pytest.mark.parametrize(
    ("block", "variable", "is_venv"),
    [
        ("EB_PyTorchContainer", "SIFPYTORCH", False),
        ("EB_PyTorchVenv", "SHIFTER_IMAGE", True),  # the user's
        ("EB_PyTorchVenv", "HOME", True),
        ("EB_PyTorchEnroot", "PYTORCH_IMAGE", False),
    ],
)
def test_a_module_without_an_image_is_a_venv(installation, block, variable, is_venv):
    env = installation()
    Path(env["EBROOTPYTORCH"], "easybuild", "PyTorch-2.13.0.eb").write_text(f"easyblock = '{block}'\n")
    assert Context({**env, variable: "x"}).is_venv == is_venv


@pytest.mark.parametrize(
    ("loaded", "verdict", "finding"),
    [
        ("PyTorch/2-cpu", WARN, "no cluster profile is loaded with it"),
        ("cluster/lumi:PyTorch/2-cpu", OK, "PyTorch"),
    ],
)
def test_what_is_missing_of_a_module_is_named(installation, loaded, verdict, finding):
    found = checks.check_module(Context(dict(installation(), LOADEDMODULES=loaded)))
    assert found.verdict == verdict and finding in found.finding


# Versions

LAIF = "lumi-multitorch-full-u24r70f21m50t210-{}.sif"


def check_versions(at, tmp_path, found, image="image.sif", gpu="rocm", source=None, **env):
    """Check a module with an image, and versions that torch's Python finds."""
    (tmp_path / "module" / "provenance").mkdir(parents=True, exist_ok=True)
    (tmp_path / "module" / "provenance" / "image.json").write_text(json.dumps({"source": source}))
    facts = None if found is None else {"versions": found}
    return checks.check_versions(at("", gpu, facts, SIFPYTORCH=f"/images/{image}", **env))


KNOWN = """
versions                              | image           | variables               | source
aws-ofi-nccl=1.18.0                   |                 |                         | aws/deep-learning-containers/pull/6668
aws-ofi-nccl=1.20.0                   |                 |                         |
aws-ofi-nccl=1.1.8                    |                 |                         |
libfabric=1.22 aws-ofi-rccl=1.4.0     |                 |                         | ROCm/aws-ofi-rccl/issues/16
libfabric=1.20 aws-ofi-rccl=1.4.0     |                 |                         |
libfabric=1.22                        |                 |                         |
                                      | 20260807_115122 |                         | laifs-container-recipes/issues/44
                                      | 20260415_130625 |                         |
                                      | 20260415_130625 | NCCL_NET_GDR_LEVEL=PHB  | laifs-container-recipes/issues/30
                                      | 20260415_130625 | NCCL_NET_GDR_LEVEL=LOC  |
                                      |                 | NCCL_NET_GDR_LEVEL=PHB  |
unknown                               | 20260807_115122 |                         | laifs-container-recipes/issues/44
"""  # noqa: E501


@pytest.mark.parametrize("row", table(KNOWN), ids=name)
def test_a_combination_with_a_known_fault_is_a_warning_with_its_source(at, tmp_path, row):
    found = None if row["versions"] == "unknown" else variables(row["versions"])
    image = LAIF.format(row["image"]) if row["image"] else "x.sif"
    finding = check_versions(at, tmp_path, found, image, **variables(row["variables"]))
    assert finding.verdict == (WARN if row["source"] else OK)
    sources = re.findall(r"\(https://github\.com/(?:lumi-ai-factory/)?(\S+?)\)", finding.finding)
    assert sources == row["source"].split()
    assert bool(finding.remedy) == bool(sources)


def test_an_image_under_another_name_is_known_by_what_it_was_installed_from(at, tmp_path):
    source = "/appl/containers/" + LAIF.format("20260807_115122")
    assert check_versions(at, tmp_path, {}, "mine.sif", source=source).verdict == WARN


def test_a_module_for_cpus_and_no_module_have_nothing_to_compare(at, tmp_path):
    found = checks.check_versions(Context({})), check_versions(at, tmp_path, {}, gpu=None)
    assert [one.verdict for one in found] == [NOT_APPLICABLE] * 2

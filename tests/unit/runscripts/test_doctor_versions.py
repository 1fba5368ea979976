"""The doctor's check of versions: known faults of NCCL's plugin, libfabric and images, as their sources report them."""

import json
import re

import pytest
from pytorch_doctor import NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import versions
from pytorch_doctor.surroundings import Outcome, Surroundings

LAIF = "lumi-multitorch-full-u24r70f21m50t210-{}.sif"
AWS, RCCL, UCCL, GROUPS, LEVEL = (
    "aws/deep-learning-containers/pull/6668", "ROCm/aws-ofi-rccl/issues/16", "uccl-project/uccl/pull/1013",
    "laifs-container-recipes/issues/44", "laifs-container-recipes/issues/30",
)  # fmt: skip


@pytest.fixture
def at(tmp_path):
    """A function that makes the surroundings of a module with an image, and versions that torch's Python finds."""

    def make(found, image="image.sif", gpu="rocm", source=None, **env):
        (tmp_path / "easybuild").mkdir()
        (tmp_path / "easybuild" / "PyTorch.eb").write_text(f"easyblock = 'EB_PyTorchContainer'\ngpu = {gpu!r}\n")
        if source:
            (tmp_path / "provenance").mkdir()
            (tmp_path / "provenance" / "image.json").write_text(json.dumps({"source": source}))
        here = Surroundings({"EBROOTPYTORCH": str(tmp_path), "SIFPYTORCH": f"/images/{image}", **env})
        here._torch = (None if found is None else {"versions": found}), Outcome(0, "", "")
        return here

    return make


@pytest.mark.parametrize(
    ("found", "image", "env", "sources"),
    [
        ({"aws-ofi-nccl": "1.18.0"}, "x.sif", {}, [AWS]),
        ({"aws-ofi-nccl": "1.20.0"}, "x.sif", {}, []),
        ({"aws-ofi-nccl": "1.1.8"}, "x.sif", {}, []),
        ({"libfabric": "1.22", "aws-ofi-rccl": "1.4.0"}, "x.sif", {}, [RCCL]),
        ({"libfabric": "1.20", "aws-ofi-rccl": "1.4.0"}, "x.sif", {}, []),
        ({"libfabric": "1.22"}, "x.sif", {}, []),
        ({"libfabric": "1.22"}, "x.sif", {"PYTORCH_FAST_NETWORK": "cxi"}, [UCCL]),
        ({"libfabric": "2.5"}, "x.sif", {"PYTORCH_FAST_NETWORK": "cxi"}, []),
        ({}, LAIF.format("20260807_115122"), {}, [GROUPS]),
        ({}, LAIF.format("20260415_130625"), {}, []),
        ({}, LAIF.format("20260415_130625"), {"NCCL_NET_GDR_LEVEL": "PHB"}, [LEVEL]),
        ({}, LAIF.format("20260415_130625"), {"NCCL_NET_GDR_LEVEL": "LOC"}, []),
        ({}, "x.sif", {"NCCL_NET_GDR_LEVEL": "PHB"}, []),
        (None, LAIF.format("20260807_115122"), {}, [GROUPS]),
    ],
)
def test_a_combination_with_a_known_fault_is_a_warning_with_its_source(at, found, image, env, sources):
    finding = versions.check(at(found, image, **env))
    assert finding.verdict == (WARN if sources else OK)
    assert re.findall(r"\(https://github\.com/(?:lumi-ai-factory/)?(\S+?)\)", finding.finding) == sources
    assert bool(finding.remedy) == bool(sources)


def test_the_finding_has_the_versions_the_symptom_and_the_remedy(at):
    finding = versions.check(at({"NCCL": "2.28.9", "aws-ofi-nccl": "1.18.0"}, gpu="cuda"))
    assert finding.finding.startswith("NCCL 2.28.9, aws-ofi-nccl 1.18.0: a large broadcast between nodes hangs (https://")
    assert finding.remedy == "use aws-ofi-nccl 1.20.0 or newer"


def test_versions_without_a_fault_are_listed(at):
    finding = versions.check(at({"RCCL": "2.26.6", "libfabric": "2.4"}))
    assert finding.finding == "RCCL 2.26.6, libfabric 2.4: no known fault"


def test_an_image_under_another_name_is_known_by_what_it_was_installed_from(at):
    finding = versions.check(at({}, "mine.sif", source="/appl/containers/" + LAIF.format("20260807_115122")))
    assert GROUPS in finding.finding


def test_a_module_for_cpus_and_no_module_have_nothing_to_compare(at):
    assert versions.check(Surroundings({})).verdict == NOT_APPLICABLE
    assert versions.check(at({}, gpu=None)).verdict == NOT_APPLICABLE


def test_every_known_fault_has_a_condition_a_source_and_a_remedy():
    for fault in json.loads(versions.KNOWN.read_text()):
        assert set(fault) <= {"versions", "network", "image", "variables", "symptom", "source", "remedy"}
        assert {"versions", "image"} & set(fault)
        assert fault["symptom"] and fault["remedy"]
        assert fault["source"].startswith("https://")

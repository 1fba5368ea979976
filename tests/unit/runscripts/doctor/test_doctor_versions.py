"""The doctor's check of versions: known faults of NCCL's plugin, libfabric and images, as their sources report them."""

import json
import re

import pytest
from pytorch_doctor import NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import installation
from pytorch_doctor.context import Context

LAIF = "lumi-multitorch-full-u24r70f21m50t210-{}.sif"
AWS, RCCL, UCCL = "aws/deep-learning-containers/pull/6668", "ROCm/aws-ofi-rccl/issues/16", "uccl-project/uccl/pull/1013"
GROUPS, LEVEL = "laifs-container-recipes/issues/44", "laifs-container-recipes/issues/30"


@pytest.fixture
def check(at, tmp_path):
    """A function that checks a module with an image, and versions that torch's Python finds."""

    def run(found, image="image.sif", gpu="rocm", source=None, **env):
        (tmp_path / "module" / "provenance").mkdir(parents=True, exist_ok=True)
        (tmp_path / "module" / "provenance" / "image.json").write_text(json.dumps({"source": source}))
        facts = None if found is None else {"versions": found}
        return installation.check_versions(at("", gpu, facts, SIFPYTORCH=f"/images/{image}", **env))

    return run


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
def test_a_combination_with_a_known_fault_is_a_warning_with_its_source(check, found, image, env, sources):
    finding = check(found, image, **env)
    assert finding.verdict == (WARN if sources else OK)
    assert re.findall(r"\(https://github\.com/(?:lumi-ai-factory/)?(\S+?)\)", finding.finding) == sources
    assert bool(finding.remedy) == bool(sources)


def test_the_finding_has_the_versions_the_symptom_and_the_remedy(check):
    finding = check({"NCCL": "2.28.9", "aws-ofi-nccl": "1.18.0"}, gpu="cuda")
    text = "NCCL 2.28.9, aws-ofi-nccl 1.18.0: a large broadcast between nodes hangs (https://"
    assert finding.finding.startswith(text) and finding.remedy == "use aws-ofi-nccl 1.20.0 or newer"
    finding = check({"RCCL": "2.26.6", "libfabric": "2.4"})
    assert finding.finding == "RCCL 2.26.6, libfabric 2.4: no known fault"


def test_an_image_under_another_name_is_known_by_what_it_was_installed_from(check):
    source = "/appl/containers/" + LAIF.format("20260807_115122")
    assert GROUPS in check({}, "mine.sif", source=source).finding


def test_a_module_for_cpus_and_no_module_have_nothing_to_compare(check):
    assert installation.check_versions(Context({})).verdict == check({}, gpu=None).verdict == NOT_APPLICABLE


def test_every_known_fault_has_a_condition_a_source_and_a_remedy():
    for fault in json.loads(installation.KNOWN.read_text()):
        assert set(fault) <= {"versions", "network", "image", "variables", "symptom", "source", "remedy"}
        assert {"versions", "image"} & set(fault)
        assert fault["symptom"] and fault["remedy"]
        assert fault["source"].startswith("https://")

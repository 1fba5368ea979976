"""The doctor's check of versions: known faults of NCCL's plugin, libfabric and images, as their sources report them."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from pytorch_doctor import NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import installation
from pytorch_doctor.context import Context, Outcome
from pytorch_doctor.probe import PROBE

LAIF = "lumi-multitorch-full-u24r70f21m50t210-{}.sif"
AWS, RCCL, UCCL = "aws/deep-learning-containers/pull/6668", "ROCm/aws-ofi-rccl/issues/16", "uccl-project/uccl/pull/1013"
GROUPS, LEVEL = "laifs-container-recipes/issues/44", "laifs-container-recipes/issues/30"

#: A torch that was built for a GPU, with what the probe asks of it.
TORCH = """
import types
__version__ = "2.15.0"
version = types.SimpleNamespace(cuda={cuda!r}, hip={hip!r})
nccl = types.SimpleNamespace(version=lambda: (2, 28, 9))
cuda = types.SimpleNamespace(device_count=lambda: 0, nccl=nccl)
def ones(count, device="cpu"):
    return types.SimpleNamespace(sum=lambda: types.SimpleNamespace(item=lambda: count))
"""


@pytest.fixture
def at(tmp_path):
    """A function that makes the context of a module with an image, and versions that torch's Python finds."""

    def make(found, image="image.sif", gpu="rocm", source=None, **env):
        (tmp_path / "easybuild").mkdir(exist_ok=True)
        (tmp_path / "easybuild" / "PyTorch.eb").write_text(f"easyblock = 'EB_PyTorchContainer'\ngpu = {gpu!r}\n")
        if source:
            (tmp_path / "provenance").mkdir()
            (tmp_path / "provenance" / "image.json").write_text(json.dumps({"source": source}))
        here = Context({"EBROOTPYTORCH": str(tmp_path), "SIFPYTORCH": f"/images/{image}", **env})
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
    finding = installation.check_versions(at(found, image, **env))
    assert finding.verdict == (WARN if sources else OK)
    assert re.findall(r"\(https://github\.com/(?:lumi-ai-factory/)?(\S+?)\)", finding.finding) == sources
    assert bool(finding.remedy) == bool(sources)


def test_the_finding_has_the_versions_the_symptom_and_the_remedy(at):
    finding = installation.check_versions(at({"NCCL": "2.28.9", "aws-ofi-nccl": "1.18.0"}, gpu="cuda"))
    text = "NCCL 2.28.9, aws-ofi-nccl 1.18.0: a large broadcast between nodes hangs (https://"
    assert finding.finding.startswith(text) and finding.remedy == "use aws-ofi-nccl 1.20.0 or newer"
    finding = installation.check_versions(at({"RCCL": "2.26.6", "libfabric": "2.4"}))
    assert finding.finding == "RCCL 2.26.6, libfabric 2.4: no known fault"


def test_an_image_under_another_name_is_known_by_what_it_was_installed_from(at):
    here = at({}, "mine.sif", source="/appl/containers/" + LAIF.format("20260807_115122"))
    assert GROUPS in installation.check_versions(here).finding


def test_a_module_for_cpus_and_no_module_have_nothing_to_compare(at):
    for here in (Context({}), at({}, gpu=None)):
        assert installation.check_versions(here).verdict == NOT_APPLICABLE


def test_every_known_fault_has_a_condition_a_source_and_a_remedy():
    for fault in json.loads(installation.KNOWN.read_text()):
        assert set(fault) <= {"versions", "network", "image", "variables", "symptom", "source", "remedy"}
        assert {"versions", "image"} & set(fault)
        assert fault["symptom"] and fault["remedy"]
        assert fault["source"].startswith("https://")


@pytest.mark.parametrize(("kind", "plugin"), [("nccl", "aws-ofi-nccl 1.18.0-aws"), ("rccl", "aws-ofi-rccl 1.4.0")])
def test_the_versions_are_those_of_the_libraries_that_nccl_loads(tmp_path, kind, plugin):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: it makes the libraries")
    runtime = {"cuda": "13.0", "hip": None} if kind == "nccl" else {"cuda": None, "hip": "7.0"}
    (tmp_path / "torch.py").write_text(TORCH.format(**runtime))
    sources = {
        f"lib{kind}-net.so": f'const char *log(void) {{ return "Initializing {plugin}"; }}',
        "libfabric.so.1": "unsigned fi_version(void) { return 1u << 16 | 22; }",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-fno-builtin", "-o", name, f"{name}.c"], cwd=tmp_path, check=True)
    env = {**os.environ, "PYTHONPATH": tmp_path, "LD_LIBRARY_PATH": tmp_path}
    output = subprocess.check_output([sys.executable, "-c", PROBE], env=env, text=True)
    name, version = re.fullmatch(r"(\S+) ([0-9.]+)\S*", plugin).groups()
    found = json.loads(output.splitlines()[-1])
    assert found["plugin"] == f"lib{kind}-net.so"
    assert found["versions"] == {kind.upper(): "2.28.9", name: version, "libfabric": "1.22"}

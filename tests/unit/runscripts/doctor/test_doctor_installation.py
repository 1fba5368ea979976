"""The checks of the module, of the image, and of versions with known faults, as their sources report them."""

import json
import re
from pathlib import Path

import pytest
from programs import program
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
    if kind == "container":
        assert "image not found: SIFPYTORCH=" in checks.check_image(here).finding


GONE, ABSENT = {"EBROOTPYTORCH": "/absent"}, "no such directory: {}=/absent"
IN_IMAGE = {**GONE, "APPTAINER_CONTAINER": "x", "SINGULARITY_CONTAINER": "x"}
#: Variables, then verdict, finding and remedy.
MODULES = [
    (GONE, FAIL, ABSENT.format("EBROOTPYTORCH"), "load the module again"),
    (IN_IMAGE, FAIL, "no such directory", "bind it: `export APPTAINER_BIND=$APPTAINER_BIND,/absent`"),
    ({"PAYLOAD": "/absent"}, FAIL, ABSENT.format("PAYLOAD"), "unset them, and load"),
    ({"PAYLOAD": "/"}, WARN, "not the module's own: PAYLOAD=/", "unset them, and load"),
    ({"LOADEDMODULES": "PyTorch/2-cpu"}, WARN, "no cluster profile is loaded with it", "module load cluster/"),
    ({}, OK, "", ""),
]


@pytest.mark.parametrize(("changes", "verdict", "finding", "remedy"), MODULES)
def test_what_is_missing_of_a_module_is_named(installation, changes, verdict, finding, remedy):
    found = checks.check_module(Context({**installation(), **changes}))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy


def test_a_python_before_the_modules_is_a_warning_unless_it_has_a_torch(installation, tmp_path):
    env, prefix = installation(), tmp_path / "env"
    for path in (prefix / "bin/python", Path(env["EBROOTPYTORCH"], "bin/python"), prefix / "conda-meta/x"):
        program(path, "")
    assert checks.check_module(Context(env)).verdict == OK
    here = Context({**env, "PATH": f"{prefix}/bin:{env['PATH']}"})
    found = checks.check_module(here)
    assert found.verdict == WARN and f"{prefix}/bin/python" in found.finding
    (prefix / "lib/python3.12/site-packages/torch").mkdir(parents=True)
    found = checks.check_module(here)
    assert (found.verdict, found.finding) == (OK, f"PyTorch/2.13.0-cpu (venv), profile lumi, your environment {prefix}")


# The image


def check_image(installation, *, start="", change=lambda content: content, record=True, **env):
    """Check a module with an image, after code in place of its start; `change` alters the file."""
    module = installation()
    root = Path(module["EBROOTPYTORCH"])
    named = {} if {"PYTORCH_IMAGE", "SHIFTER_IMAGE"} & set(env) else {"SIFPYTORCH": str(root / "PyTorch.sif")}
    content = bytes(200)
    if change(content):
        (root / "PyTorch.sif").write_bytes(change(content))
    if record:
        (root / "provenance" / "image.json").write_text(json.dumps({"size": len(content)}))
    program(root / "bin" / "start-shell", f'[ "$*" = "-c true" ] || exit 9\n{start}')
    return checks.check_image(Context({**module, **named, **env}))


REBUILD, SQUASHFUSE = "eb --rebuild PyTorch-2.13.0.eb", "FATAL:   container creation failed: squashfuse_ll exited: "
REFUSED, NAMESPACES = "failed to open /dev/fuse: Permission denied", "Failed to create user namespace: not allowed"
#: Standard errors of a start that fails, then finding and remedy: a node that denies containers is no installation.
DENIED = [
    (f"INFO:    gocryptfs not found\n{SQUASHFUSE}fuse: {REFUSED}", REFUSED, "chmod 0666 /dev/fuse"),
    ("FATAL:   fuse: device not found, try 'modprobe fuse' first", "device not found", "modprobe fuse; chmod"),
    ("FATAL:   user: unknown userid 54321", "unknown userid 54321", "its name service must know you"),
    (
        f"\033[91mERROR  : {NAMESPACES}\n\033[0mINFO   :   apptainer-suid",
        *(f"does not start: ERROR  : {NAMESPACES}", "user namespaces, which this machine denies"),
    ),
    ("FATAL: no such format", "does not start: FATAL: no such format", REBUILD),
]
#: For images that the module's command starts: variable, value, and what gets the image again.
BY_NAME = [
    ("SHIFTER_IMAGE", "a/image:1", "`shifterimg pull a/image:1`"),
    ("PYTORCH_IMAGE", "a/image:1", "`podman-hpc pull a/image:1`"),
    ("PYTORCH_IMAGE", "/image.sqsh", REBUILD),
]
NO_IMAGE = "echo no such image >&2; exit 1"
#: Image, verdict, finding, remedy.
IMAGES = [
    ({}, OK, "PyTorch.sif starts", ""),
    ({"change": lambda content: content[:-1]}, FAIL, " bytes, expected ", REBUILD),
    ({"change": lambda _: b""}, FAIL, "image not found: SIFPYTORCH=", REBUILD),
    ({"record": False}, OK, "PyTorch.sif starts", ""),
    ({"APPTAINER_CONTAINER": "x"}, NOT_APPLICABLE, "pytorch-doctor runs in it", ""),
    *(({"start": f"printf '%b\n' \"{text}\" >&2; exit 255"}, FAIL, *rest) for text, *rest in DENIED),
    *(({"start": NO_IMAGE, name: value}, FAIL, f"{value} does not start: no s", get) for name, value, get in BY_NAME),
]


@pytest.mark.parametrize(("options", "verdict", "finding", "remedy"), IMAGES)
def test_an_image_is_as_installed_and_starts_or_what_to_do_is_named(installation, options, verdict, finding, remedy):
    found = check_image(installation, **options)
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy
    assert ("eb --rebuild" in found.remedy) == (remedy == REBUILD)


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


def test_every_known_fault_has_a_condition_a_source_and_a_remedy():
    for fault in json.loads(checks.KNOWN.read_text()):
        assert set(fault) <= {"versions", "image", "variables", "symptom", "source", "remedy"}
        assert {"versions", "image"} & set(fault)
        assert fault["symptom"] and fault["remedy"]
        assert fault["source"].startswith("https://")

"""The doctor's check of torch, and what it asks torch."""

import ctypes.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, OK, WARN
from pytorch_doctor.checks import installation as checks
from pytorch_doctor.probe import PROBE
from tables import name, table

ENV = "/home/u/env"
BASE = "/home/u/base"
MINE = "your own, in {}, hides the module's"
#: What torch reports; then verdict, message, remedy.
TORCHES = [
    ({"in_image": False, "directory": "/home/u/torch"}, FAIL, "not the module's", "move it"),
    ({"directory": "/user-software/torch"}, WARN, MINE.format("user-software"), "rm -r /user-software/torch"),
    ({"in_image": False, "directory": f"{ENV}/torch", "prefix": ENV}, WARN, MINE.format(ENV), "deactivate it"),
    ({"directory": f"{BASE}/torch"}, WARN, MINE.format("PYTHONUSERBASE"), f"rm -r {BASE}/torch {BASE}/to"),
    ({"total": 7.0}, FAIL, "eight ones", "exclude this node"),
    ({}, OK, "torch 2.13.0+cpu from /opt/torch", ""),
]


@pytest.mark.parametrize(("facts", "verdict", "message", "remedy"), TORCHES)
def test_another_torch_is_told_from_the_modules(python, facts, verdict, message, remedy):
    found = checks.check_torch(python(facts, PYTHONUSERBASE=BASE))
    assert found.verdict == verdict and message in found.finding and remedy in found.remedy


SAID = "/e is active, but its Python, /e/p, does not exist on this host"


@pytest.mark.parametrize(
    ("error", "finding", "remedy"),
    [
        ("ImportError: libx", "python does not import torch: ImportError: libx", "unset PYTHONPATH; "),
        (
            "FATAL: no such format",
            "FATAL: no such format",
            "look for this message in docs/troubleshooting.md, or run `check-image`",
        ),
        (f"conda-python-simple: {SAID}. Deactivate it", SAID, "Deactivate it"),  # the launcher's words
    ],
)
def test_a_torch_that_cannot_be_imported_is_a_failure_with_its_cause(python, tmp_path, error, finding, remedy):
    (tmp_path / "torch").mkdir()
    path = {"PYTHONPATH": str(tmp_path)} if error.startswith("ImportError") else {}
    found = checks.check_torch(python(None, error=error, **path))
    assert found.verdict == FAIL and finding in found.finding and found.remedy.startswith(remedy)


STAND_IN = """
import os, sys
from types import SimpleNamespace as Some

here = os.path.dirname(__file__)
setting = {setting}
__version__ = "2.13.0"
version = Some(cuda=setting.get("cuda"), hip=setting.get("hip"))
sys.prefix = os.path.join(os.path.dirname(here), "conda")
os.stat = lambda path: Some(st_dev=setting.get("mounts", {{}}).get(path, setting.get("mounts", {{}}).get("image", 1)))


def ones(count, device="cpu"):
    if device in setting.get("broken", {{}}):
        raise RuntimeError(setting["broken"][device])
    total = 7.0 if device == setting.get("wrong") else 8.0
    return Some(sum=lambda: Some(item=lambda: total))


nccl = Some(version=lambda: (2, 28, 9))
cuda = Some(device_count=lambda: setting.get("gpus", 0), get_device_name=lambda index: "GPU %d" % index, nccl=nccl)
"""


def probe(directory, env=None, **setting):
    """Ask a stand-in of torch what the doctor asks torch."""
    (directory / "torch").mkdir(exist_ok=True)
    (directory / "torch" / "__init__.py").write_text(STAND_IN.format(setting=setting))
    env = {"PYTHONPATH": str(directory), **(env or {})}
    output = subprocess.check_output([sys.executable, "-c", PROBE], env=env, text=True)
    return json.loads(output.splitlines()[-1])


def test_torch_is_in_the_image_where_the_root_directory_is_made_in_memory(tmp_path):
    assert probe(tmp_path, mounts={"/": 1, "image": 2})["in_image"]
    assert not probe(tmp_path, mounts={"/": 1, "image": 2, str(tmp_path / "torch"): 3})["in_image"]


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ({"gpus": 2}, None),
        ({"gpus": 2, "broken": {"cuda:1": "CUDA error: x\nmore"}}, "cuda:1: CUDA error: x"),
        ({"gpus": 2, "broken": {"cuda:1": ""}}, "cuda:1: RuntimeError"),
        ({"gpus": 3, "wrong": "cuda:2"}, "cuda:2: eight ones add up to 7.0"),
        ({"gpus": 0, "broken": {"cuda": "the driver is too old"}}, "the driver is too old"),
    ],
)
def test_every_gpu_computes_and_the_one_that_does_not_is_named(tmp_path, setting, fault):
    facts = probe(tmp_path, cuda="13.0", **setting)
    assert facts["fault"] == fault
    assert facts["devices"] == [f"GPU {index}" for index in range(setting["gpus"])]


PLUGINS = """
torch | NCCL_NET_PLUGIN | files                      | plugin
cuda  |                 | nccl-net.so                | libnccl-net.so
cuda  |                 | rccl-net.so nccl-net-ofi.so | None
hip   |                 | rccl-net.so                | librccl-net.so
hip   |                 | nccl-net.so                | libnccl-net.so
cuda  | ofi             | nccl-net-ofi.so            | libnccl-net-ofi.so
cuda  | ofi             | nccl-net.so                | None
cuda  | none            | nccl-net.so                | None
"""


@pytest.mark.parametrize("row", table(PLUGINS), ids=name)
def test_nccls_plugin_is_looked_for_by_the_names_that_nccl_takes(tmp_path, row):
    (library,) = Path(ctypes.util.__file__).parents[1].glob("lib-dynload/_ctypes.*.so")
    for file in row["files"].split():
        shutil.copy(library, tmp_path / f"lib{file}")
    env = {"LD_LIBRARY_PATH": str(tmp_path), "NCCL_NET_PLUGIN": row["NCCL_NET_PLUGIN"]}
    facts = probe(tmp_path, env, gpus=1, **{row["torch"]: "7.0"})
    assert str(facts["plugin"]) == row["plugin"]

"""The doctor on a node with another machine than that of the image or the virtual environment."""

import json
import platform
from pathlib import Path

import pytest
from pytorch_doctor import FAIL
from pytorch_doctor.checks import installation as checks
from pytorch_doctor.context import Context

#: Codes of machines in SIF headers.
CODES = {"x86_64": b"02", "aarch64": b"04"}
OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"


@pytest.fixture
def check(installation):
    """A function that checks a module whose image's header has the code of a machine; no image starts here."""

    def run(code):
        env = installation("EB_PyTorchContainer")
        sif = Path(env["EBROOTPYTORCH"], "x.sif")
        sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + b"01\0" + code + bytes(200))
        return checks.check_image(Context({**env, "SIFPYTORCH": str(sif), "PATH": ""}))

    return run


def test_an_image_for_another_machine_is_a_failure_with_its_remedy(check):
    finding = check(CODES[OTHER])
    assert finding.verdict == FAIL
    assert f"x.sif is an image for {OTHER}, and this node is {platform.machine()}" in finding.finding
    assert "the module of this node's software tree" in finding.remedy


@pytest.mark.parametrize("code", [CODES.get(platform.machine(), b"00"), b"00", b"\xff\xff"])
def test_an_image_for_this_machine_or_an_unknown_one_is_checked_further(check, code):
    assert "is an image for" not in check(code).finding


@pytest.mark.parametrize(("machine", "found"), [(OTHER, True), (platform.machine(), False), ("riscv64", False)])
def test_a_virtual_environment_of_another_machine_is_a_failure(installation, machine, found):
    env = installation()
    system = {"system": f"Linux-5.14.21-150500.55-cray_shasta_c_64k-{machine}-with-glibc2.31"}
    Path(env["EBROOTPYTORCH"], "provenance", "build.json").write_text(json.dumps(system))
    finding = checks.check_module(Context(env))
    assert (f" was built on {OTHER}, and this node is {platform.machine()}" in finding.finding) is found
    assert (finding.verdict == FAIL) is found


@pytest.mark.parametrize("record", ["", "[]", '{"system": null}'])
def test_a_record_without_the_machine_is_no_failure(installation, record):
    env = installation()
    Path(env["EBROOTPYTORCH"], "provenance", "build.json").write_text(record)
    assert checks.check_module(Context(env)).verdict != FAIL

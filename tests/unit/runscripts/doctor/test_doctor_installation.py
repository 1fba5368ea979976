"""The doctor's checks of the module and of the image."""

import hashlib
import json
from pathlib import Path

import pytest
from pytorch_doctor import FAIL, NOT_APPLICABLE, OK, WARN
from pytorch_doctor.checks import installation as checks
from pytorch_doctor.context import Context, recipe

# The module


def test_the_values_of_a_recipe_are_read_without_running_it(installation, tmp_path):
    env = installation(gpu="rocm")
    name, values = recipe(Path(env["EBROOTPYTORCH"]))
    assert name == "PyTorch-2.13.0.eb"
    assert (values["version"], values["gpu"]) == ("2.13.0", "rocm")
    assert "toolchain" not in values
    assert recipe(tmp_path / "absent") == (None, {})


@pytest.mark.parametrize(
    ("containers", "name"),
    [
        (("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"), "APPTAINER_BIND"),
        (("SINGULARITY_CONTAINER",), "SINGULARITY_BIND"),
    ],
)
def test_a_directory_that_the_image_does_not_see_is_bound_by_the_variable_of_its_runtime(containers, name):
    env = {**dict.fromkeys(containers, "x.sif"), "EBROOTPYTORCH": "/none"}
    assert f"visible in the image: see {name}" in checks.check_module(Context(env)).remedy


@pytest.mark.parametrize(
    ("changes", "verdict", "finding", "remedy"),
    [
        ({"EBROOTPYTORCH": "/absent"}, FAIL, "no such directory: EBROOTPYTORCH=/absent", "load the module again"),
        ({"PAYLOAD": "/absent"}, FAIL, "no such directory: PAYLOAD=/absent", "unset them, and load"),
        ({"PAYLOAD": "/"}, WARN, "not the module's own: PAYLOAD=/", "unset them and load"),
        ({"LOADEDMODULES": "PyTorch/2.13.0-cpu"}, WARN, "no cluster profile is loaded with it", "module load cluster/"),
    ],
)
def test_what_is_missing_of_a_module_is_named(installation, changes, verdict, finding, remedy):
    found = checks.check_module(Context({**installation(), **changes}))
    assert found.verdict == verdict and finding in found.finding and remedy in found.remedy


def test_a_python_before_the_modules_is_a_warning(installation, tmp_path):
    env = installation()
    for directory in (tmp_path, Path(env["EBROOTPYTORCH"], "bin")):
        (directory / "python").write_text("#!/bin/sh\n")
        (directory / "python").chmod(0o755)
    assert checks.check_module(Context(env)).verdict == OK
    found = checks.check_module(Context({**env, "PATH": f"{tmp_path}:{env['PATH']}"}))
    assert found.verdict == WARN
    assert f"{tmp_path}/python" in found.finding


def test_an_active_environment_with_a_torch_is_no_fault(installation, tmp_path):
    env = installation()
    prefix = tmp_path / "env"
    for name in ("bin/python", "conda-meta/x", "lib/python3.12/site-packages/torch/x"):
        (prefix / name).parent.mkdir(parents=True)
        (prefix / name).write_text("#!/bin/sh\n")
        (prefix / name).chmod(0o755)
    found = checks.check_module(Context({**env, "PATH": f"{prefix}/bin:{env['PATH']}"}))
    assert (found.verdict, found.finding) == (OK, f"PyTorch/2.13.0-cpu (venv), profile lumi, your environment {prefix}")


# The image


@pytest.fixture
def sif(installation, tmp_path):
    """A module with an image, and a singularity that runs anything; the environment and the image's path."""
    env = installation("EB_PyTorchContainer")
    path = Path(env["EBROOTPYTORCH"], "PyTorch.sif")
    path.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0" + bytes(range(256)))
    note = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    Path(env["EBROOTPYTORCH"], "provenance", "image.json").write_text(json.dumps(note))
    runtime = tmp_path / "singularity"
    runtime.write_text("#!/bin/sh\n[ ! -e ${0%/*}/broken ] || { echo 'FATAL: no such format' >&2; exit 255; }\n")
    runtime.chmod(0o755)
    return {**env, "SIFPYTORCH": str(path), "PATH": f"{tmp_path}:/bin"}, path


def test_an_image_as_it_was_installed_is_fine(sif):
    env, _ = sif
    assert checks.check_image(Context(env)).verdict == OK
    assert "SHA-256 as installed" in checks.check_image(Context(env, full=True)).finding


@pytest.mark.parametrize(
    ("damage", "full", "finding"),
    [
        (lambda content: content[:-1], False, " bytes, expected "),
        (lambda _: b"nothing" * 50, False, "is not an image in SIF format"),
        (lambda content: content[:-1] + b"x", True, "is damaged: its SHA-256 differs"),
        (None, False, "image not found: SIFPYTORCH="),
    ],
)
def test_an_image_that_is_gone_cut_changed_or_no_image_is_a_failure(sif, damage, full, finding):
    env, path = sif
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    found = checks.check_image(Context(env, full=full))
    assert found.verdict == FAIL and finding in found.finding and "eb --rebuild PyTorch-2.13.0.eb" in found.remedy
    assert not full or checks.check_image(Context(env)).verdict == OK


@pytest.mark.parametrize(
    ("output", "message", "remedy"),
    [
        (
            "INFO:    gocryptfs not found\nFATAL:   container creation failed: squashfuse_ll exited: "
            "fuse: failed to open /dev/fuse: Permission denied",
            "failed to open /dev/fuse: Permission denied",
            "chmod 0666 /dev/fuse",
        ),
        ("FATAL:   fuse: device not found, try 'modprobe fuse' first", "device not found", "modprobe fuse; chmod"),
        (
            "FATAL:   Couldn't determine user account information: user: unknown userid 54321",
            "user: unknown userid 54321",
            "report the node to the site: its name service must know you",
        ),
        (
            "\033[91mERROR  : Failed to create user namespace: not allowed\n\033[0mINFO   :   apptainer-suid",
            "does not start: ERROR  : Failed to create user namespace: not allowed",
            "user namespaces, which this machine denies",
        ),
    ],
)
def test_a_node_that_denies_containers_is_named_and_no_installation(sif, python, tmp_path, output, message, remedy):
    (tmp_path / "singularity").write_text(f"#!/bin/sh\nprintf '%b\\n' \"{output}\" >&2; exit 255\n")
    found = checks.check_image(Context(sif[0]))
    assert found.verdict == FAIL
    assert message in found.finding
    assert remedy in found.remedy
    assert "eb" not in found.remedy.split()


def test_an_image_that_does_not_start_is_a_failure_with_the_runtimes_words(sif, tmp_path):
    env, _ = sif
    (tmp_path / "broken").touch()
    found = checks.check_image(Context(env))
    assert found.verdict == FAIL
    assert "FATAL: no such format" in found.finding
    absent = str(tmp_path / "absent")
    assert checks.check_image(Context({**env, "PATH": absent})).remedy == "load the site's module of Apptainer"


def test_in_the_image_a_file_that_is_not_bound_is_nothing_to_check(sif):
    env, path = sif
    path.unlink()
    assert checks.check_image(Context({**env, "APPTAINER_CONTAINER": "x"})).verdict == NOT_APPLICABLE


def test_an_image_at_shifters_gateway_is_started_there(installation, tmp_path):
    env = {**installation("EB_PyTorchShifter"), "SHIFTER_IMAGE": "site/image:1", "PATH": str(tmp_path)}
    assert checks.check_image(Context(env)).verdict == FAIL
    (tmp_path / "shifter").write_text('#!/bin/sh\n[ "$*" = "--image=site/image:1 true" ]\n')
    (tmp_path / "shifter").chmod(0o755)
    assert checks.check_image(Context(env)).verdict == OK


@pytest.mark.parametrize(
    ("easyblock", "name", "remedy"),
    [
        ("EB_PyTorchPodmanHPC", "site/image:1", "`podman-hpc pull site/image:1`"),
        ("EB_PyTorchEnroot", "/image.sqsh", "`eb --rebuild PyTorch-2.13.0.eb`"),
        ("EB_PyTorchContainerEngine", "/image.sqsh", "`eb --rebuild PyTorch-2.13.0.eb`"),
    ],
)
def test_an_image_of_another_program_is_started_by_the_modules_command(installation, easyblock, name, remedy):
    env = {**installation(easyblock), "PYTORCH_IMAGE": name}
    start = Path(env["EBROOTPYTORCH"]) / "bin" / "start-shell"
    start.write_text('#!/bin/sh\n[ "$*" = "-c true" ] && echo no such image >&2; exit 1\n')
    start.chmod(0o755)
    found = checks.check_image(Context(env))
    assert (found.verdict, found.finding) == (FAIL, f"{name} does not start: no such image")
    assert remedy in found.remedy
    start.write_text("#!/bin/sh\n")
    assert checks.check_image(Context(env)).verdict == OK

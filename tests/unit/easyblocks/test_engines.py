"""The modules around images of enroot, the Container Engine, podman-hpc and Shifter, and the downloads of enroot."""

import os
import re
from pathlib import Path

import pytest
import tomllib
from easybuild.tools.build_log import EasyBuildError
from recipes import TREE, both_syntaxes, command, module_text

pytestmark = pytest.mark.early

ENROOT, ENGINE, PODMAN, SHIFTER = (
    TREE / "easyconfigs" / "p" / "PyTorch" / f"PyTorch-{name}.eb"
    for name in (
        "2.12.0-ngc-26.05-enroot",
        "2.12.0-ngc-26.05-ce",
        "2.10.0-ngc-26.01-podman-hpc",
        "2.10.0-ngc-26.01-shifter",
    )
)
DIGEST = "sha256:ca73b4795f0d3ae27e9cd81b1b1f1b7fc6c0a129f7d51a359d2326e95af48a3d"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory for commands of the site, first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}/site:{os.environ['PATH']}")
    return tmp_path / "site"


PYXIS = "--container-image=$PYTORCH_IMAGE --container-mounts=$PYTORCH_MOUNTS,$PWD --container-workdir=$PWD $RUNSCRIPTS/"


@both_syntaxes
@pytest.mark.parametrize(
    ("recipe", "launch", "variables"),
    [
        (ENROOT, PYXIS, {"PYTORCH_IMAGE": "PyTorch-2.12.0-ngc-26.05-enroot.sqsh", "PYTORCH_MOUNTS": ""}),
        (
            ENGINE,
            "--environment=$PYTORCH_EDF $RUNSCRIPTS/",
            {"PYTORCH_IMAGE": "PyTorch-2.12.0-ngc-26.05-ce.sqsh", "PYTORCH_EDF": "PyTorch-2.12.0-ngc-26.05-ce.toml"},
        ),
        (PODMAN, "", {"PYTORCH_IMAGE": "nersc/pytorch:26.01.01", "PYTORCH_PODMAN_OPTIONS": "--gpu --nccl-cu13"}),
        (
            SHIFTER,
            "shifter --image=$SHIFTER_IMAGE $RUNSCRIPTS/",
            {"SHIFTER_IMAGE": "nersc/pytorch:26.01.01", "SHIFTER_MODULE": "gpu,nccl-cu13-plugin"},
        ),
    ],
    ids=["enroot", "engine", "podman-hpc", "shifter"],
)
def test_the_module_has_launch_line_and_image_and_sets_no_variable_that_pyxis_reads_for_every_srun(
    easyblock, recipe, launch, variables
):
    text = module_text(easyblock(recipe))
    assert f"srun -N2 --ntasks-per-node=2 {launch}conda-python-distributed -u train.py\n" in text
    for variable, value in variables.items():
        assert re.search(rf"\b{variable}\W.*{re.escape(value)}", text), variable
    assert not re.search(r"PYXIS_|EDF_PATH|ENROOT_|SINGULARITY", text)


def test_the_environment_definition_file_is_toml_with_mounts_and_the_sites_hooks(
    easyblock, monkeypatch, site, tmp_path
):
    app = easyblock(ENGINE)
    app.make_installdir()
    command(site / "srun", "echo Python 3.12\n")
    monkeypatch.chdir(site)
    (tmp_path / "$USER").mkdir()
    app.cfg["binds"] = [f"{tmp_path}/$USER:/b"]
    added = {"texts": ['a "b" \\ c', "ü $HOME ${X}", "a = [1]"], "writable": True, "new": 1, "env": {"B": ""}}
    app.cfg["edf"] = {**app.cfg["edf"], **added}
    app.require_start()
    entries = tomllib.loads(Path(app.started).read_text())
    root = app.installdir
    assert {name: entries[name] for name in added} == added
    mounts = entries.pop("mounts")
    assert mounts[:2] == [f"{root}/runscripts:/runscripts", f"{root}/payload:/payload"]
    assert mounts[-2:] == ["${HOME}:${HOME}", "${PWD}:${PWD}"]
    assert f"{tmp_path}/$$USER:/b" in mounts  # not expanded
    expected = {"image": app.image_path, "workdir": "${PWD}", "entrypoint": False}
    assert entries.items() >= expected.items()
    assert entries["annotations"]["com"]["hooks"]["aws_ofi_nccl"] == {"enabled": "true", "variant": "cuda-dl"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("edf = {'annotations': {", "edf = {'image': 'x', 'annotations': {"),
        ("edf = {'annotations': {", "edf = {'mounts.a': 'x', 'annotations': {"),
        ("edf = {", "edf = {'com hooks': 'x', "),
    ],
)
def test_an_entry_with_a_wrong_name_or_that_the_installation_sets_is_an_error(easyblock, edited, old, new):
    message = f"^{ENGINE.name}: edf = .* is wrong: expected a dictionary of entries .* but for image and mounts"
    with pytest.raises(EasyBuildError, match=message):
        easyblock(edited(ENGINE.name, old, new))


@pytest.fixture
def import_with(easyblock, site, tmp_path, monkeypatch):
    """A function that downloads the image with an enroot of these lines; the Image, or EasyBuildError."""
    monkeypatch.setenv("ENROOT_CACHE_PATH", str(tmp_path / "cache"))

    def run(lines):
        command(site / "enroot", f'echo "$@" >> {tmp_path}/calls\n{lines}')
        app = easyblock(ENROOT)
        app.fetch_step()
        return app.image

    return run


def test_enroot_imports_the_digest_and_the_packing_of_the_recipe(import_with, tmp_path):
    image = import_with('printf "hsqs%s" "$ENROOT_SQUASH_OPTIONS" > "$3"\n')
    words = (tmp_path / "calls").read_text().split()
    assert [words[0], words[3]] == ["import", f"docker://nvcr.io#nvidia/pytorch:{DIGEST}"]
    assert image.file.endswith(f"{DIGEST.replace(':', '-')}.sqsh")
    assert Path(image.file).read_text() == "hsqs-comp lz4 -no-fragments"
    calls = (tmp_path / "calls").read_text()
    assert import_with("exit 1\n").file == image.file, "downloaded again"
    assert (tmp_path / "calls").read_text() == calls


@pytest.mark.parametrize(
    ("image", "expected"),
    [("docker.io/nersc/pytorch", "nersc/pytorch"), ("ubuntu", "ubuntu"), ("r:5000/x/y", "r:5000#x/y")],
)
def test_images_of_docker_hub_are_imported_without_a_host(easyblock, edited, tmp_path, image, expected):
    app = easyblock(edited(ENROOT.name, "docker://nvcr.io/nvidia/pytorch:26.05-py3", f"docker://{image}"))
    words, _ = app.image.command("x.sqsh", str(tmp_path / "cache"))
    assert words[-1] == f"docker://{expected}:{DIGEST}"


@pytest.mark.parametrize(
    ("recipe", "program", "missing", "fails"),
    [
        (ENROOT, "enroot", "it imports docker://nvcr.io/", "enroot cannot start python3 in .*Try `enroot start`"),
        (PODMAN, "podman-hpc", "it starts docker.io/", "podman-hpc cannot start python3 in .*Try `podman-hpc pull"),
        (ENGINE, "srun", None, "The Container Engine cannot start python3 in .*Run `eb` on a system"),
        (SHIFTER, "shifter", "it starts nersc/", "Shifter cannot start python3 in .*Try `shifterimg pull nersc/"),
    ],
    ids=["enroot", "podman-hpc", "engine", "shifter"],
)
def test_a_missing_program_and_an_image_that_does_not_start_are_named_with_advice(
    easyblock, site, monkeypatch, tmp_path, recipe, program, missing, fails
):
    app = easyblock(recipe)
    app.make_installdir()
    command(site / program, "echo starting; echo no such image >&2; exit 1\n")
    with pytest.raises(EasyBuildError, match=fails.replace(" in .*", " in .*: no such image. ")):
        app.require_start()
    monkeypatch.setenv("PATH", str(tmp_path))  # the environment of the tests has podman-hpc
    if missing:
        with pytest.raises(EasyBuildError, match=f"{program} not found on PATH: {missing}.* Run `eb` on a host with"):
            app.configure_step()

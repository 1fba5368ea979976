"""The versions that pip and uv leave as they are, from what is installed beside torch, and the wheels for them."""

import platform
import shutil
import subprocess
import sys
import zipfile

import pytest
from distributions import write_wheel
from repository import TREE

pytestmark = pytest.mark.early

PROGRAM = TREE / "easyblocks" / "pytorch_install" / "programs" / "hold_packages.py"


@pytest.fixture
def constraints(tmp_path):
    """A function that runs the program on packages, `name==version` -> requirements, as an image's Python does."""

    def run(packages, image_constraint="", index=""):
        for package, requirements in packages.items():
            (tmp_path / "module").mkdir(exist_ok=True)
            wheel = write_wheel(tmp_path, *package.split("=="), requirements=requirements)
            shutil.unpack_archive(wheel, tmp_path / "packages", "zip")
        environment = {"PYTHONPATH": str(tmp_path / "packages"), "PIP_CONSTRAINT": image_constraint}
        subprocess.run(  # -S: without the torch of the tests' own environment
            [sys.executable, "-s", "-S", "-", tmp_path / "module", index],
            input=PROGRAM.read_text(),
            env=environment,
            text=True,
            check=True,
        )
        file = tmp_path / "module/constraints.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line and not line.startswith("#")]

    return run


CUDA = {
    "torch==2.15.0": [
        "sympy>=1.13.3",
        "numpy",
        "nvidia_nccl-cu13==2.28.9; platform_system == 'Linux'",
        "cuda-toolkit[cudart,nvtx]==13.2.0; sys_platform == 'linux'",
        "triton (==3.7.0)",
    ],
    "cuda_toolkit==13.2.0": ["nvidia-nvtx==13.2.*; extra == 'nvtx'", "nvidia-cuda-runtime==13.2.20"],
    "nvidia-nccl-cu13==2.28.9": [],
    "nvidia-cuda-runtime==13.2.20": [],
    "triton==3.7.0": [],
    "sympy==1.14.0": [],
    "numpy==2.4.6": [],
    "pip==26.1": [],
}
ROCM = {
    "torch==2.10.0+rocm7.1": [],
    "torchvision==0.25.0a0": ["torch==2.10.0"],
    "flash_attn==2.8.3+rocm": ["torch", "einops"],
    "einops==0.8.1": [],
    "torchmetrics==1.9.0": ["torch>=2.0.0", "torch==2.8.0; extra == 'typing'"],
    "odd==1.0-of_ours+x": [],  # which pip would stop at
}


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        (
            CUDA,
            "cuda-toolkit==13.2.0 nvidia-cuda-runtime==13.2.20 nvidia-nccl-cu13==2.28.9 torch==2.15.0 triton==3.7.0",
        ),
        (ROCM, "flash-attn==2.8.3+rocm torch==2.10.0+rocm7.1 torchaudio==2.10.0+rocm7.1 torchvision==0.25.0a0"),
    ],
    ids=["what torch requires exactly", "what is built for this torch"],
)
def test_what_belongs_to_the_build_of_torch_is_constrained(constraints, packages, expected):
    assert constraints(packages) == expected.split()


@pytest.mark.parametrize(
    ("torch", "expected"),
    [
        ("2.0.1", ["torchaudio==2.0.2", "torchvision==0.15.2"]),
        ("2.10.0+rocm7.1", ["torchaudio==2.10.0+rocm7.1", "torchvision==0.25.0+rocm7.1"]),
        ("2.13.0+cpu", ["torchaudio==2.11.0+cpu", "torchvision==0.28.0+cpu"]),
        ("2.14.1+cu130", ["torchaudio==2.11.0+cu130", "torchvision==0.29.2+cu130"]),
        ("2.15.0", []),  # any newer torchvision fits
        ("2.1.0a0+b5021ba", []),
    ],
)
def test_torchvision_and_torchaudio_are_those_of_the_same_release_and_build(constraints, torch, expected):
    assert constraints({f"torch=={torch}": []}) == sorted([f"torch=={torch}", *expected])


def test_the_images_own_constraints_are_kept(constraints, tmp_path):
    own = tmp_path / "own.txt"
    own.write_text("numpy<2\n")
    assert constraints({"torch==2.15.0": []}, str(own)) == ["numpy<2", "torch==2.15.0"]


def test_what_is_installed_has_a_wheel_without_modules_that_precedes_those_of_an_index(constraints, tmp_path):
    constraints({"torch==2.13.0+cpu": ["triton==3.7.0"], "triton==3.7.0": []}, index="https://example.org/cpu")
    held = tmp_path / "module/held"
    assert (held / "packages").read_text() == f"{tmp_path}/packages"
    wheels = {path.name.partition("-999-cp")[0]: path for path in held.glob("*.whl")}
    assert sorted(wheels) == ["torch-2.13.0+cpu", "triton-3.7.0"]
    assert f"manylinux_2_28_{platform.machine()}" in wheels["torch-2.13.0+cpu"].stem.rpartition("-")[2].split(".")
    assert not [name for name in zipfile.ZipFile(wheels["torch-2.13.0+cpu"]).namelist() if name.endswith(".py")]
    assert "--extra-index-url https://example.org/cpu torchvision" in (tmp_path / "module/constraints.txt").read_text()


def test_only_a_directory_of_the_installation_gets_the_line_that_changes_pip(constraints, tmp_path):
    constraints({"torch==2.15.0": []})
    assert not list((tmp_path / "packages").glob("*.pth"))
    (tmp_path / "packages").rename(tmp_path / "module/packages")
    (tmp_path / "packages").symlink_to(tmp_path / "module/packages")
    constraints({})
    assert [path.name for path in (tmp_path / "module/packages").glob("*.pth")] == ["zz_users_pip.pth"]
    assert (tmp_path / "module/held/hooked").exists()

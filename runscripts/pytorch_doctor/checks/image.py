# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the image of a container module exists, is undamaged, and starts."""

import hashlib
import json
import platform
from pathlib import Path

from pytorch_doctor import fail, not_applicable, ok, warn
from pytorch_doctor.context import last_line
from pytorch_doctor.runtime import find_obstacle

AGAIN = "load the module again, which finds the site's copy if there is one; else install it with `eb --rebuild {}`"
#: The mark of a SIF file (https://github.com/apptainer/sif, pkg/sif/sif.go).
MAGIC, MAGIC_OFFSET = b"SIF_MAGIC", 32
#: Machines, as `uname -m` prints them, by their codes in that file (pkg/sif/arch.go).
MACHINES, MACHINE_OFFSET = {b"02": "x86_64", b"04": "aarch64", b"06": "ppc64le"}, 45
PIECE = 1 << 24  # bytes


def check(here):
    """Whether the image exists, has the size that it was installed with, and starts; with --full its SHA-256 too."""
    if here.module is None:
        return not_applicable("image", "no module is loaded")
    if here.kind == "venv":
        return not_applicable("image", "a module with a virtual environment")
    if here.kind == "shifter":
        return _check_shifter(here)
    if here.kind == "engine":
        return _check_engine(here)
    image = Path(here.env.get("SIFPYTORCH") or "/nonexistent")
    remedy = AGAIN.format(here.easyconfig or "<recipe>")
    if here.in_image and not image.exists():
        return not_applicable("image", "pytorch-doctor runs in it; its file is not visible here")
    if not image.is_file():
        return fail("image", f"image not found: SIFPYTORCH={image}", remedy)
    with image.open("rb") as file:
        start = file.read(MACHINE_OFFSET + 2)
    if start[MAGIC_OFFSET : MAGIC_OFFSET + len(MAGIC)] != MAGIC:
        return fail("image", f"{image} is not an image in SIF format", remedy)
    machine = MACHINES.get(start[MACHINE_OFFSET:])
    if machine not in (None, platform.machine()):
        problem = f"{image} is an image for {machine}, and this node is {platform.machine()}"
        return fail("image", problem, "load the module of this node's software tree, or use nodes for the image")
    size, found = _recorded(here.module, "size"), image.stat().st_size
    if size is None:
        return warn(
            "image",
            f"no record of the image in {here.module}/provenance",
            "install it again with this version of its recipe, so that damage can be detected",
        )
    if found != size:
        return fail("image", f"{image} has {found} bytes, expected {size}", remedy)
    if here.full and _sha256(image) != _recorded(here.module, "sha256"):
        return fail("image", f"{image} is damaged: its SHA-256 differs from that of its installation", remedy)
    compared = "SHA-256 as installed" if here.full else f"{size // 1000000} MB as installed"
    if not here.in_image:
        runtime = here.which("singularity") or here.which("apptainer")
        if runtime is None:
            return fail("image", "singularity and apptainer not found on PATH", "load the site's module of Apptainer")
        outcome = here.run([runtime, "exec", str(image), "true"])
        if outcome.status:
            remedy = find_obstacle(outcome.error) or "if that does not help: " + remedy
            return fail("image", f"{image} does not start: {last_line(outcome.error)}", remedy)
    return ok("image", f"{image.name}, {compared}, starts")


def _check_shifter(here):
    image = here.env.get("SHIFTER_IMAGE", "")
    if here.in_image:
        return ok("image", image + ", starts")
    outcome = here.run(["shifter", "--image=" + image, "true"])
    if outcome.status:
        return fail(
            "image",
            f"Shifter does not start {image}: {last_line(outcome.error)}",
            f"check with `shifterimg images` that the gateway has it, else `shifterimg pull {image}`",
        )
    return ok("image", image + ", starts")


def _check_engine(here):
    """Whether the image of enroot, the Container Engine or podman-hpc starts."""
    image = here.env.get("PYTORCH_IMAGE", "")
    if here.in_image:
        return ok("image", image + ", starts")
    outcome = here.run([str(here.module / "bin" / "start-shell"), "-c", "true"])
    if outcome.status:
        remedy = f"`podman-hpc pull {image}`"
        if image.startswith("/"):
            remedy = f"if the file is missing, install it again with `eb --rebuild {here.easyconfig or '<recipe>'}`"
        return fail("image", f"{image} does not start: {last_line(outcome.error)}", remedy)
    return ok("image", image + ", starts")


def _recorded(module, name):
    """A value from the record of the image's installation, None if there is none."""
    try:
        return json.loads((module / "provenance" / "image.json").read_text()).get(name)
    except (OSError, ValueError):
        return None


def _sha256(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(PIECE), b""):
            digest.update(piece)
    return digest.hexdigest()

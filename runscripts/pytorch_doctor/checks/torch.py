# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the module's Python imports torch, in the module's version, from the module."""

import os
import re

from pytorch_launch.container import USER_SOFTWARE
from pytorch_launch.isolation import isolate

from pytorch_doctor import fail, not_applicable, ok, warn
from pytorch_doctor.context import last_line
from pytorch_doctor.runtime import find_obstacle


def check(here):
    """Whether `python` imports the module's torch, with the environment that the user has."""
    if here.module is None:
        return not_applicable("torch", "no module is loaded")
    facts, outcome = here.torch
    if facts is None:
        remedy = _remedy(here) or find_obstacle(outcome.error) or f"see the check `image`; {_again(here)}"
        return fail("torch", f"python does not import torch: {last_line(outcome.error)}", remedy)
    origin, expected = _origin(here, facts), _installed_version(here)
    version, directory, python, foreign = (facts[name] for name in ("version", "directory", "python", "foreign"))
    place = f"torch {version} from {directory}"
    remove = _remedy(here) or f"move it; the search path: {python} -c 'import sys; print(sys.path)'"
    if origin == "another place":
        return fail("torch", f"python imports {place}, which is not the module's", remove)
    if foreign:
        return fail("torch", f"torch loads {foreign[0]} of another torch", remove)
    if facts["total"] != 8:
        return fail("torch", f"eight ones add up to {facts['total']}", "exclude this node, and report it to the site")
    if origin != "the module":
        finding = f"{place}: your own, in {origin}, hides the module's {expected or 'torch'}"
        return warn("torch", finding, "pip uninstall torch, unless you mean to use it")
    release, build = (part != other for part, other in zip(_parts(version), _parts(expected or version)))
    if release or (build and "+" in version and "+" in expected):
        return (fail if release else warn)("torch", f"{place}, but the module is for {expected}", _again(here))
    if _remedy(here):
        others = "; ".join(problem.fault for problem in isolate(here.env)[1])
        return warn("torch", f"the module's, but variables lead to another installation: {others}", _remedy(here))
    return ok("torch", f"{version}, for {_device(facts)}")


def _installed_version(here):
    """The version of torch that the installation recorded, else that of the recipe, None without either."""
    record = here.module / "constraints.txt"
    lines = record.read_text().splitlines() if record.is_file() else []
    recorded = [line[len("torch==") :].strip() for line in lines if line.startswith("torch==")]
    return recorded[0] if recorded else here.recipe.get("version")


def _parts(version):
    """Release and build of a version: `2.13.0` and `cpu`, as pip writes them, with `nv25.1` for `nv25.01`.

    https://packaging.python.org/en/latest/specifications/version-specifiers/, "Local version identifiers".
    """
    public, _, build = re.sub(r"(?<=\.)0+(?=[0-9])", "", version).lower().partition("+")
    return re.match(r"[0-9.]*", public).group(), build


def _again(here):
    option = "--force" if here.kind == "venv" else "--rebuild"  # which keeps the running jobs of a venv
    return "install the module again: `eb {} {}`".format(option, here.easyconfig or "<recipe>")


def _device(facts):
    if facts["hip"]:
        return "ROCm " + ".".join(facts["hip"].split(".")[:2])
    if facts["cuda"]:
        return "CUDA " + facts["cuda"]
    return "Intel GPUs" if facts["xpu"] else "CPUs"


def _origin(here, facts):
    """The place of torch: "the module", one of the user's own places, or "another place"."""
    directory = facts["directory"] + os.sep
    own = {"user-software": USER_SOFTWARE, "PYTHONUSERBASE": here.env.get("PYTHONUSERBASE") or "/nonexistent"}
    for name, place in own.items():
        if directory.startswith((place + os.sep, os.path.realpath(place) + os.sep)):
            return name
    environment = os.path.realpath(str(here.module / "venv")) + os.sep
    ours = directory.startswith(environment) if here.kind == "venv" else facts["in_image"]
    return "the module" if ours else "another place"


def _remedy(here):
    """How to avoid the other installations that variables lead to; "" if there are none."""
    names = " ".join(sorted(isolate(here.env)[0]))
    facts, _ = here.torch
    # seen from outside: a directory of the host may be missing in the image
    outside = here.kind == "container" and not here.in_image
    if not names or (outside and facts and _origin(here, facts) != "another place"):
        return ""
    return f"unset {names}; conda-python-distributed removes these directories from them by itself"

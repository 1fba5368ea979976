# SPDX-License-Identifier: BSD-3-Clause
"""Checks the loaded module: its variables, its directories, and that its Python is the first on PATH."""

import json
import platform
from pathlib import Path

from pytorch_doctor import fail, ok, warn

#: Variables with directories of the installation, and these directories.
PLACES = {"CONTAINERROOT": "", "RUNSCRIPTS": "runscripts", "PAYLOAD": "payload"}
MACHINES = ("x86_64", "aarch64")


def check(here):
    """Whether a PyTorch module is loaded, and consistent."""
    if here.module is None:
        return fail(
            "module", "no PyTorch module is loaded", "module load PyTorch/<version>: `module avail PyTorch` lists them"
        )
    if not here.module.is_dir():
        where = f"visible in the image: see {here.binds}" if here.in_image else "there: load the module again"
        return fail("module", f"no such directory: EBROOTPYTORCH={here.module}", "check that it is " + where)
    expected = {name: here.module / place for name, place in PLACES.items()}
    missing = [name for name in expected if not Path(here.env.get(name) or "/nonexistent").is_dir()]
    if missing:
        values = ", ".join("{}={}".format(name, here.env.get(name, "")) for name in missing)
        return fail("module", "no such directory: " + values, "unset them, and load the module again")
    others = [name for name in expected if not expected[name].samefile(here.env[name])]
    if others:
        values = ", ".join(f"{name}={here.env[name]}" for name in others)
        remedy = "unset them and load the module again, unless this is intended"
        return warn("module", "not the module's own: " + values, remedy)
    machine = None if here.in_image else _machine_of_build(here.module)
    if machine not in (None, platform.machine()):
        problem = f"{here.module} was built on {machine}, and this node is {platform.machine()}"
        return fail("module", problem, "load the module of this node's software tree, or use nodes of that kind")
    python = None if here.in_image else here.which("python")
    if python and here.module not in Path(python).parents:
        return warn(
            "module",
            f"`python` is {python}, not the module's",
            "load the PyTorch module last, and deactivate other environments",
        )
    loaded = here.env.get("LOADEDMODULES", "").split(":")
    profile = [name[len("cluster/") :] for name in loaded if name.startswith("cluster/")]
    if loaded != [""] and not profile:
        return warn(
            "module",
            "no cluster profile is loaded with it: a step continues after one of its ranks has failed",
            "load the PyTorch module again, or `module load cluster/<name>`",
        )
    name = [name for name in loaded if name.startswith("PyTorch/")] or [here.module]
    where = ", in its image" if here.in_image else ""
    return ok("module", "{} ({}), profile {}{}".format(name[0], here.kind, (profile or ["unknown"])[0], where))


def _machine_of_build(module):
    """The machine that a virtual environment was built on, as `uname -m` prints it; None if it is not recorded."""
    try:
        system = json.loads((module / "provenance" / "build.json").read_text())["system"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return next((machine for machine in MACHINES if machine in str(system).split("-")), None)

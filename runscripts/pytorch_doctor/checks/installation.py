# SPDX-License-Identifier: BSD-3-Clause
"""Checks the loaded module, its image, the torch that its Python imports, and versions with known faults.

`known_faults.json` has the faults; one applies if all of its conditions are true:

`versions`    component to version; 1.18 is any 1.18.x, "" is any version
`image`       a pattern for the file name of the image, or of the image that it was installed from
`variables`   variable to values

`symptom`, `source` and `remedy` are for the message.
"""

import json
import os
from fnmatch import fnmatch
from pathlib import Path

from pytorch_launch.container import USER_SOFTWARE
from pytorch_launch.isolation import isolate

from pytorch_doctor import fail, not_applicable, ok, warn
from pytorch_doctor.context import last_line

KNOWN = Path(__file__).parents[1] / "known_faults.json"


def check_module(here):
    """Whether a PyTorch module is loaded, and a cluster profile with it."""
    if here.module is None:
        return fail("no PyTorch module is loaded", "module load PyTorch/<version>: `module avail PyTorch` lists them")
    loaded = here.env.get("LOADEDMODULES", "")
    if loaded and ":cluster/" not in f":{loaded}":
        finding = "no cluster profile is loaded with it: a step continues after one of its ranks has failed"
        return warn(finding, "load the PyTorch module again, or `module load cluster/<name>`")
    return ok(here.module.name)


def check_torch(here):
    """Whether `python` starts and imports the module's torch, with the environment that the user has."""
    if here.module is None:
        return not_applicable("no module is loaded")
    facts, outcome = here.torch
    if facts is None:
        return explain_failure(here, outcome)
    place = f"torch {facts['version']} from {facts['directory']}"
    if facts["total"] != 8:
        return fail(f"eight ones add up to {facts['total']}", "exclude this node, and report it to the site")
    origin = find_origin(here, facts)
    if origin == "another place":
        remedy = unset_line(here) or f"move it; the search path: {facts['python']} -c 'import sys; print(sys.path)'"
        return fail(f"python imports {place}, which is not the module's", remedy)
    if origin != "the module":
        # pip could remove the module's
        remedy = f"rm -r {facts['directory']} {facts['directory']}-*.dist-info"
        if origin == facts["prefix"]:
            remedy = "deactivate it"
        return warn(f"{place}: your own, in {origin}, hides the module's", f"{remedy}, unless you mean to use it")
    return ok(place)


def explain_failure(here, outcome):
    """The Finding if torch cannot be imported."""
    said = last_line(outcome.error)
    if said.startswith("conda-python-simple: "):  # such as an environment of another system
        fault, _, remedy = said.partition(": ")[2].partition(". ")
        return fail(fault, remedy)
    remedy = "look for this message in docs/troubleshooting.md, or run `check-image`"
    return fail(f"python does not import torch: {said}", unset_line(here) or remedy)


def unset_line(here):
    """The line that unsets variables that lead to another installation, None without one."""
    changes, _ = isolate(here.env)
    if not changes:
        return None
    return f"unset {' '.join(sorted(changes))}; conda-python-distributed removes these directories by itself"


def find_origin(here, facts):
    """The place of torch: "the module", one of the user's own, as the active environment's, or "another place"."""
    directory = facts["directory"] + os.sep
    own = {"user-software": USER_SOFTWARE, "PYTHONUSERBASE": here.env.get("PYTHONUSERBASE") or "/nonexistent"}
    for name, place in own.items():
        if directory.startswith((place + os.sep, os.path.realpath(place) + os.sep)):
            return name
    is_modules = facts["in_image"]
    if here.is_venv:
        is_modules = directory.startswith(os.path.realpath(str(here.module)) + os.sep)
    if is_modules:
        return "the module"
    return facts["prefix"] or "another place"


def check_versions(here):
    """Whether this combination of versions has a known fault."""
    if here.gpu is None:
        return not_applicable("no module for GPUs is loaded")
    facts, _ = here.torch
    found = facts["versions"] if facts else {}
    paths = (here.env.get("SIFPYTORCH"), here.record("image.json").get("source"))
    images = [Path(path).name for path in paths if path]
    faults = [fault for fault in json.loads(KNOWN.read_text()) if matches(fault, found, images, here.env)]
    listed = ", ".join(f"{name} {version}" for name, version in found.items()) or "versions unknown"
    if not faults:
        return ok(listed + ": no known fault")
    symptoms = "; ".join("{symptom} ({source})".format(**fault) for fault in faults)
    return warn(f"{listed}: {symptoms}", "; ".join(fault["remedy"] for fault in faults))


def matches(fault, found, images, env):
    """Whether a known fault applies to the versions `found`, one of the images' names, and the variables `env`."""
    for name, wanted in fault.get("versions", {}).items():
        if name not in found or (wanted and not f"{found[name]}.".startswith(wanted + ".")):
            return False
    for name, values in fault.get("variables", {}).items():
        if env.get(name, "") not in values:
            return False
    return any(fnmatch(image, fault.get("image", "*")) for image in images or [""])
